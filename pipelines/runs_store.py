"""The runs in a store, for those who look at them: find, read, check whether they are alive.

What they hold is written by pipelines/engine/recorder.py.
"""

import difflib
import json
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipelines.engine.holder import Holder, find_holder
from pipelines.engine.recorder import RunInfo
from pipelines.run_state import NodeState, RunState
from steps.lib.errors import UserError
from steps.lib.log_parts import LogReader, log_prefix
from steps.lib.store import NotFoundError, Store

M = TypeVar("M", bound=BaseModel)
RECORD = "run.json"
"""Written last when a run begins."""
TAIL_LINES = 12
"""How much of a failed step's log is shown at the end of a run."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the store shows it at one moment."""

    info: RunInfo
    state: RunState
    """Its phase is Lost when it has not ended and its engine is gone."""
    holder: Holder | None
    """The process that runs it; None when none does."""

    @property
    def on_argo(self) -> bool:
        """Whether a cluster runs it, and no process of ours."""
        return self.info.settings.get("engine") == "argo"


def run_ids(store: Store) -> list[str]:
    """Ids of all runs, by name."""
    return [head.key.rpartition("/")[2] for head in store.list("runs/_index")]


def load_run(store: Store, run_id: str) -> Run:
    """One run.

    Raises:
        UserError: there is no such run, or its record cannot be read.
    """
    info = _read(store, run_id, RECORD, RunInfo)
    holder = find_holder(store, run_id)  # before the state: a run that ends meanwhile is not taken for lost
    state = _read(store, run_id, "status.json", RunState)
    alive = holder is not None and holder.alive(time.time())
    if state.phase == "Running" and not alive and info.settings.get("engine") != "argo":
        state.lose("interrupted: the process that ran it is gone", holder.beat if holder else 0.0)
    return Run(info=info, state=state, holder=holder if alive else None)


def load_runs(store: Store) -> tuple[list[Run], list[str]]:
    """All runs that have begun, the newest first; and a line for each one that cannot be read."""
    runs, problems = [], []
    for run_id in run_ids(store):
        try:
            if _has_begun(store, run_id):
                runs.append(load_run(store, run_id))
        except UserError as e:
            problems.append(f"run {run_id}: {e}")
    return sorted(runs, key=lambda run: run.info.started, reverse=True), problems


def state_before(store: Store, run_id: str) -> RunState | None:
    """How far the run came when it ran before; None when it is new."""
    return load_run(store, run_id).state if _has_begun(store, run_id) else None


def _has_begun(store: Store, run_id: str) -> bool:
    """Whether its record is whole: run.json is written last (begin_record)."""
    return store.head(f"runs/{run_id}/{RECORD}") is not None


def load_document(store: Store, run_id: str) -> dict[str, Any]:
    """The workflow that a run ran. Raises UserError when there is no such run."""
    load_run(store, run_id)
    key = f"runs/{run_id}/workflow.json"
    try:
        data = store.get(key)
        document: dict[str, Any] = json.loads(data)
    except (NotFoundError, json.JSONDecodeError, UnicodeDecodeError) as e:
        raise UserError(f"{key} in {store.uri}: missing or damaged; start the run's command anew") from e
    return document


def log_reader(store: Store, state: RunState, node: NodeState, number: int) -> LogReader:
    """Reads the log of a node's attempt `number`, as RunState.log_numbers counts."""
    return LogReader(store, log_prefix(state.run_id, node.name, number), shared=state.shared_logs)


def log_tail(store: Store, state: RunState, node: NodeState) -> list[str]:
    """The last lines that a node's last attempt wrote; none when it wrote nothing."""
    numbers = state.log_numbers(node)
    if node.attempt < 0:
        return []
    reader = log_reader(store, state, node, numbers[-1])
    lines = (line.replace("\t", "    ") for line in reader.lines(last=True) if not line.startswith("progress "))
    return list(deque(lines, maxlen=TAIL_LINES))


def _read(store: Store, run_id: str, name: str, model: type[M]) -> M:
    key = f"runs/{run_id}/{name}"
    try:
        return model.model_validate_json(store.get(key))
    except NotFoundError as e:
        if name != RECORD:
            raise UserError(
                f"{key} in {store.uri}: missing; the run's record is damaged, start its command anew"
            ) from e
        close = difflib.get_close_matches(run_id, run_ids(store), n=3, cutoff=0.4)
        meant = f"the closest are {', '.join(close)}" if close else "`python -m pipelines.runs list` shows all"
        raise UserError(f"run {run_id!r}: not in {store.uri}; {meant}") from e
    except ValidationError as e:
        raise UserError(
            f"{key} in {store.uri}: unreadable: {e.errors()[0]['msg']}; it is damaged, or another version of tripod wrote it"
        ) from e
