"""Create a Workflow, and end it."""

import copy
from typing import Any

from pipelines.engine.argo.status import ENDED, phase_of
from pipelines.engine.argo.workflows import Workflows
from steps.lib.digest import digest_of
from steps.lib.errors import UserError
from steps.lib.kube import SPEC, ExistsError, Object
from steps.lib.wait import wait

_GONE_S = 120.0


def submit(workflows: Workflows, document: dict[str, Any]) -> Object:
    """Create the Workflow and read it back. One of that name that has ended is replaced: its record is in the store.

    Raises:
        UserError: a workflow of that name runs, or is another's; the server refuses it; it is not there afterwards.
        TemporaryError: the server is away.
    """
    name = document["metadata"]["name"]
    body = copy.deepcopy(document)
    body["metadata"].setdefault("annotations", {})[SPEC] = digest_of(document)
    if ended := check_free(workflows, document):
        workflows.remove(ended)
        wait(lambda: workflows.get(name) is None, what=f"workflow {name} is removed", timeout_s=_GONE_S)
    try:
        workflows.create(body)
    except ExistsError as e:
        raise _taken(workflows, name) from e
    made = workflows.get(name)
    if made is None:
        raise UserError(f"run {name}: created in {workflows.place}, but it is gone again; ask who deletes it there")
    return made


def check_free(workflows: Workflows, document: dict[str, Any]) -> Object | None:
    """The Workflow that is there already; it has ended, and was made from the same document.

    Raises:
        UserError: it runs, or was made from another document.
    """
    name = document["metadata"]["name"]
    there = workflows.get(name)
    if there is None:
        return None
    if there["metadata"].get("annotations", {}).get(SPEC) != digest_of(document):
        raise _taken(workflows, name)
    if phase_of(there) not in ENDED:
        raise UserError(f"already running: {name}; follow it with `python -m pipelines.runs status {name} --follow`")
    return there


def _taken(workflows: Workflows, name: str) -> UserError:
    return UserError(f"run {name}: {workflows.place} has another workflow of that name; choose another --run-id")


def cancel(workflows: Workflows, name: str) -> bool:
    """Ask for its end: running pods get SIGTERM, nothing new starts, the exit handler does not run.

    Returns:
        Whether it was running.
    """
    there = workflows.get(name)
    if there is None or phase_of(there) in ENDED:
        return False
    workflows.terminate(name)
    return True
