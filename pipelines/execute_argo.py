"""Run a built workflow on Argo, with its record in the store and a view for who watches."""

import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.engine.argo.follow import Follower, GoneError
from pipelines.engine.argo.submit import check_free, submit
from pipelines.engine.argo.workflows import Workflows
from pipelines.engine.events import Event, Outcome, Phase
from pipelines.engine.recorder import Recorder, RunInfo, begin_record
from pipelines.engine.workflow import Workflow, parse_workflow
from pipelines.execute import last_words
from pipelines.run_state import RunState, new_state
from pipelines.runs_store import load_document, state_before
from pipelines.view import View
from steps.lib.digest import digest_of
from steps.lib.errors import TemporaryError, UserError
from steps.lib.store import Store
from steps.lib.trainjob.cancel import withdraw_cancel


def execute_on_argo(
    document: dict[str, Any],
    *,
    workflows: Workflows,
    store: Store,
    info: RunInfo,
    view: View,
    detach: bool = False,
) -> Outcome | None:
    """Submit the Workflow and follow it to its end; None when it goes on without us.

    A run of that name that has ended runs again, under its one record: finished steps are hits.

    Args:
        detach: do not follow.

    Raises:
        UserError: the cluster refuses the workflow; the run is running already; the name is another workflow's.
    """
    workflow = parse_workflow(document)
    check_free(workflows, document)
    before = state_before(store, info.run_id)
    if before and digest_of(load_document(store, info.run_id)) != digest_of(document):
        raise UserError(f"run {info.run_id}: {store.uri} has another run of that name; choose another --run-id")
    withdraw_cancel(store, info.run_id)  # of its last time
    if before and before.phase == "Running":  # nobody has followed it to its end, and its pods go with it
        with suppress(GoneError):
            catch_up(before, workflow, workflows=workflows, store=store)
    state = new_state(workflow, time.time(), before, shared_logs=True)
    begin_record(store, info, document, state)
    try:
        submit(workflows, document)
    except UserError as e:
        state.end(Outcome(phase=Phase.ERROR, exit_code=e.code, message=str(e), nodes={}), time.time())
        begin_record(store, info, document, state)
        raise
    return None if detach else follow_on_argo(state, workflow, workflows=workflows, store=store, view=view)


def follow_on_argo(
    state: RunState,
    workflow: Workflow,
    *,
    workflows: Workflows,
    store: Store,
    view: View,
    leave: threading.Event | None = None,
) -> Outcome | None:
    """Follow a workflow from where `state` has left it, and keep its record.

    Args:
        leave: set by another thread, it ends the following.

    Returns:
        How it ended; None after Ctrl-C or `leave`, which only end the following.

    Raises:
        GoneError: the workflow is gone.
        TemporaryError: the cluster stayed away; the run may go on.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"tripod-{state.run_id}-"))
    recorder = Recorder(store, state, None)

    def listen(event: Event) -> None:
        recorder(event)
        view.update(event)

    follower = Follower(workflows, workflow, state, scratch=scratch, listeners=[listen], leave=leave)
    outcome = None
    try:
        with view.showing(state, recorder.lock), suppress(KeyboardInterrupt):
            outcome = follower.run()
            if outcome:
                recorder.end(outcome, follower.ended_at)
    except TemporaryError as e:
        again = f"`python -m pipelines.runs status {state.run_id} --follow` comes back to it"
        raise TemporaryError(f"{e} Run {state.run_id} does not depend on this; {again}") from e
    finally:
        whole = recorder.close()
    if outcome:
        view.ended(state, last_words(store, state, recorder.problem, scratch))
    if whole or not outcome:
        shutil.rmtree(scratch, ignore_errors=True)
    return outcome


def catch_up(state: RunState, workflow: Workflow, *, workflows: Workflows, store: Store) -> None:
    """Bring `state`, the record and the logs of a run up to date with the cluster.

    Raises:
        GoneError: the workflow is gone.
    """
    recorder = Recorder(store, state, None)
    try:
        with tempfile.TemporaryDirectory(prefix=f"tripod-{state.run_id}-") as scratch:
            follower = Follower(workflows, workflow, state, scratch=Path(scratch), listeners=[recorder], live=False)
            if outcome := follower.take():
                recorder.end(outcome, follower.ended_at)
            recorder.close()
    finally:
        recorder.close()
