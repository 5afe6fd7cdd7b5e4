"""Run a built workflow, here or on Argo, with its record in the store and a view for who watches."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.engine.argo.follow import Follower
from pipelines.engine.argo.submit import submit
from pipelines.engine.events import Event, Outcome
from pipelines.engine.holder import held
from pipelines.engine.local import LocalEngine
from pipelines.engine.recorder import Recorder, RunInfo, begin_record
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import RunState, new_state
from pipelines.runs_store import log_tail, state_before
from pipelines.telling import summary
from pipelines.view import View
from steps.lib.kube import Cluster
from steps.lib.store import Store


def execute(
    document: dict[str, Any],
    *,
    store: Store,
    info: RunInfo,
    view: View,
    env: Mapping[str, str] | None = None,
    grace_s: float = 60,
) -> Outcome:
    """Run the Workflow `document` to its end.

    Called in the main thread, Ctrl-C and SIGTERM stop the run, twice at once.

    Args:
        document: parsed YAML; its metadata.name is the run id.
        env: environment of the steps, under what the workflow sets; None for this process's own.
        grace_s: from asking a step to stop to killing it.

    Raises:
        UserError: the workflow holds what cannot be run here, or the run is running already.
    """
    workflow = parse_workflow(document)
    with held(store, info.run_id) as holder:
        state = new_state(workflow, time.time(), state_before(store, info.run_id))
        begin_record(store, info, document, state)
        scratch = Path(tempfile.mkdtemp(prefix=f"tripod-{info.run_id}-"))
        recorder = Recorder(store, state, holder)

        def listen(event: Event) -> None:
            recorder(event)
            view.update(event)

        try:
            with view.showing(state, recorder.lock):
                outcome = LocalEngine(workflow, scratch=scratch, env=env, listeners=[listen], grace_s=grace_s).run()
                recorder.end(outcome, time.time())
        finally:
            whole = recorder.close()
        view.ended(state, _last_words(store, state, recorder.problem, scratch))
        if whole:
            shutil.rmtree(scratch, ignore_errors=True)
        return outcome


def execute_on_argo(
    document: dict[str, Any],
    *,
    cluster: Cluster,
    namespace: str,
    store: Store,
    info: RunInfo,
    view: View,
    detach: bool = False,
    again: bool = False,
) -> Outcome | None:
    """Submit the Workflow and follow it to its end; None when it goes on without us.

    Args:
        detach: do not follow.
        again: the run has ended before; it runs once more under its name.

    Raises:
        UserError: the cluster refuses the workflow, or has another of that name.
    """
    workflow = parse_workflow(document)
    state = new_state(workflow, time.time(), state_before(store, info.run_id) if again else None)
    submit(cluster, document, namespace, again=again)
    begin_record(store, info, document, state)
    return None if detach else follow_on_argo(state, cluster=cluster, namespace=namespace, store=store, view=view)


def follow_on_argo(state: RunState, *, cluster: Cluster, namespace: str, store: Store, view: View) -> Outcome | None:
    """Follow a workflow that was submitted, and keep its record; None after Ctrl-C, which only ends the following."""
    scratch = Path(tempfile.mkdtemp(prefix=f"tripod-{state.run_id}-"))
    recorder = Recorder(store, state, None)

    def listen(event: Event) -> None:
        recorder(event)
        view.update(event)

    outcome = None
    try:
        with view.showing(state, recorder.lock), suppress(KeyboardInterrupt):
            outcome = Follower(cluster, namespace, state.run_id, scratch=scratch, listeners=[listen]).run()
            recorder.end(outcome, time.time())
    finally:
        recorder.close()
        shutil.rmtree(scratch, ignore_errors=True)
    if outcome:
        view.ended(state, _last_words(store, state, recorder.problem, scratch))
    return outcome


def _last_words(store: Store, state: RunState, problem: str, scratch: Path) -> list[str]:
    """What to tell a person at the end; of a success nothing, the caller knows what came out of it."""
    if problem:
        return [
            *summary(state, lambda node: []),
            f"warning: the record of the run is not whole ({problem}); the steps' logs are in {scratch}",
        ]
    return [] if state.phase == "Succeeded" else summary(state, partial(log_tail, store, state))


def source_revision(folder: Path) -> str:
    """The git revision of the tree at `folder`, with `-dirty` when it has changes; "" outside a repository."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
