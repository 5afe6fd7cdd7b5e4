"""Keeps what a run does in the store while it runs.

    runs/_index/<id>        empty; what `runs list` looks at
    runs/<id>/run.json      RunInfo: what was asked for
    runs/<id>/workflow.json the workflow as it was run
    runs/<id>/status.json   RunState: phases, times, outputs
    runs/<id>/engine.json   the process that runs it (holder.py)
    runs/<id>/logs/...      what the steps wrote (steps.lib.log_parts)

A thread of its own writes, so that a slow store does not slow the steps. A store that fails is tried
again; when it fails to the end, the logs stay on this machine and the run says where.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, ConfigDict

from pipelines.engine.events import Event, LogLine, NodeFinished, NodeRetried, NodeStarted, Outcome
from pipelines.engine.holder import BEAT_S, Holder, beat
from pipelines.run_state import RunState
from steps.lib.digest import canonical_json
from steps.lib.errors import TripodError
from steps.lib.log_parts import LogCopy, SharedLogCopy, log_prefix
from steps.lib.store import Store

_EVERY_S = 1.0
_AFTER_FAILURE_S = 5.0


class RunInfo(BaseModel):
    """What was asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    command: list[str]
    """The command line."""
    recipe: str = ""
    """Name of the recipe; "" when there is none."""
    site: str = ""
    """Name or file of the site."""
    settings: dict[str, Any] = {}
    """All settings of the run."""
    tree: str = ""
    """Revision of the source, as `git describe --always --dirty` names it; "" outside a repository."""
    started: float
    """Seconds since the epoch."""


def begin_record(store: Store, info: RunInfo, document: dict[str, Any], state: RunState) -> None:
    """Write what is known before anything runs."""
    store.put(f"runs/_index/{info.run_id}", b"")
    store.put(f"runs/{info.run_id}/status.json", state.model_dump_json(indent=1).encode())
    store.put(f"runs/{info.run_id}/workflow.json", canonical_json(document))
    store.put(f"runs/{info.run_id}/run.json", info.model_dump_json(indent=1).encode())


class Recorder:
    """A listener of the engine that writes state and logs; `close` when the run has ended.

    Args:
        state: is brought up to date with each event; guarded by `lock`.
        holder: is kept alive; None when a cluster runs the workflow, and others may follow it too.
    """

    def __init__(self, store: Store, state: RunState, holder: Holder | None):
        self.lock = threading.Lock()
        self.state = state
        self.problem = ""
        """Why the last write failed; "" when it did not."""
        self._store = store
        self._holder = holder
        self._logs: dict[tuple[str, int], LogCopy] = {}
        self._changed = True
        self._closing = False
        self._wake = threading.Event()
        self._beaten = time.monotonic()
        self._pool = ThreadPoolExecutor(1, "recorder")
        self._thread = self._pool.submit(self._work)

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, LogLine):
            return
        with self.lock:
            self.state.apply(event)
            self._changed = True
            if isinstance(event, NodeStarted):
                number = self.state.earlier.get(event.node, 0) + event.attempt
                prefix = log_prefix(self.state.run_id, event.node, number)
                kind = SharedLogCopy if self.state.shared_logs else LogCopy
                self._logs[event.node, event.attempt] = kind(self._store, prefix, event.log)
            elif isinstance(event, NodeRetried | NodeFinished) and (event.node, event.attempt) in self._logs:
                self._logs[event.node, event.attempt].ended = True
        if isinstance(event, NodeStarted | NodeRetried | NodeFinished):
            self._wake.set()

    def end(self, outcome: Outcome, time: float) -> None:
        """Take in how the run ended."""
        with self.lock:
            self.state.end(outcome, time)
            self._changed = True

    def close(self) -> bool:
        """Write all that is left. Returns whether the store has everything; if not, see `problem`."""
        self._closing = True
        self._wake.set()
        self._thread.result()
        self._pool.shutdown()
        return not self.problem

    def _work(self) -> None:
        while True:
            self._wake.wait(_AFTER_FAILURE_S if self.problem else _EVERY_S)
            closing = self._closing
            self._wake.clear()
            try:
                self._write()
                self.problem = ""
            except (TripodError, OSError) as e:
                self.problem = str(e)
                with self.lock:
                    self._changed = True
            if closing:
                return

    def _write(self) -> None:
        with self.lock:
            changed, self._changed = self._changed, False
            status = self.state.model_dump_json(indent=1).encode() if changed else b""
            logs = list(self._logs.items())
        for name, log in logs:  # before the state: a reader who sees that a step has ended finds its whole log
            log.copy()
            if log.done:
                with self.lock:
                    del self._logs[name]
        if status:
            self._store.put(f"runs/{self.state.run_id}/status.json", status)
        if self._holder and time.monotonic() - self._beaten > BEAT_S:
            beat(self._store, self.state.run_id, self._holder)
            self._beaten = time.monotonic()
