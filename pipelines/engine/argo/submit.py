"""Create a Workflow, cancel it. Everything goes through the Kubernetes API."""

import copy
from typing import Any

from steps.lib.digest import digest_of
from steps.lib.errors import UserError
from steps.lib.kube import SPEC, Cluster, ExistsError, Object
from steps.lib.kube.kinds import WORKFLOW
from steps.lib.wait import wait

ENDED = ("Succeeded", "Failed", "Error")
_GONE_S = 120.0


def submit(cluster: Cluster, document: dict[str, Any], namespace: str, *, again: bool = False) -> Object:
    """Create the Workflow and read it back. The same document under the same name is created once.

    Args:
        again: one of that name that has ended is replaced: its record is in the store.

    Raises:
        UserError: another Workflow has the name; the server refuses it; it is not there afterwards.
        TemporaryError: the cluster is away.
    """
    name = document["metadata"]["name"]
    body = copy.deepcopy(document)
    body["metadata"]["namespace"] = namespace
    body["metadata"].setdefault("annotations", {})[SPEC] = digest_of(document)
    if again:
        _remove_ended(cluster, namespace, name)
    try:
        cluster.create(WORKFLOW, body)
    except ExistsError as e:
        raise UserError(
            f"run {name}: the {cluster.name} cluster has another workflow of that name in {namespace}; "
            f"choose another --run-id, or follow it with `python -m pipelines.runs status {name} --follow`"
        ) from e
    made = cluster.get(WORKFLOW, namespace, name)
    if made is None:
        raise UserError(
            f"run {name}: created on the {cluster.name} cluster, but it is gone again; ask who deletes workflows in {namespace}"
        )
    return made


def _remove_ended(cluster: Cluster, namespace: str, name: str) -> None:
    there = cluster.get(WORKFLOW, namespace, name)
    if there is None:
        return
    if phase_of(there) not in ENDED:
        raise UserError(f"already running: {name}; follow it with `python -m pipelines.runs status {name} --follow`")
    cluster.delete(WORKFLOW, namespace, name, uid=there["metadata"]["uid"])
    wait(lambda: cluster.get(WORKFLOW, namespace, name) is None, what=f"workflow {name} is removed", timeout_s=_GONE_S)


def cancel(cluster: Cluster, namespace: str, name: str) -> bool:
    """Ask for its end: running pods get SIGTERM, nothing new starts, the exit handler does not run.

    Returns:
        Whether it was running.
    """
    there = cluster.get(WORKFLOW, namespace, name)
    if there is None or phase_of(there) in ENDED:
        return False
    cluster.patch(WORKFLOW, namespace, name, {"spec": {"shutdown": "Terminate"}})
    return True


def phase_of(workflow: Object) -> str:
    """Pending, Running, Succeeded, Failed or Error; Pending before the controller has seen it."""
    return workflow.get("status", {}).get("phase") or "Pending"
