"""Run a built workflow here, with its record in the store and a view for who watches."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pipelines.engine.events import Event, Outcome
from pipelines.engine.holder import held
from pipelines.engine.local import LocalEngine
from pipelines.engine.recorder import Recorder, RunInfo, begin_record
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import RunState, new_state
from pipelines.runs_store import log_tail, state_before
from pipelines.telling import summary
from pipelines.view import View
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
        view.ended(state, last_words(store, state, recorder.problem, scratch))
        if whole:
            shutil.rmtree(scratch, ignore_errors=True)
        return outcome


def last_words(store: Store, state: RunState, problem: str, scratch: Path) -> list[str]:
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
