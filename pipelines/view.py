"""What a person, or a program, sees of a run while it goes on. Everything but JSON goes to stderr.

LiveView   a table that is redrawn, at a terminal (live.py)
Silence    nothing
PlainView  one line for each thing that happens, elsewhere
JsonView   one JSON object a line on stdout, for programs
"""

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import TextIO

from pipelines.engine.events import Event, LogLine, Phase
from pipelines.run_state import NodeState, RunState
from pipelines.telling import detail, node_seconds, printable, took

_PROGRESS_EVERY_S = 10.0
_LINE_CHARS = 160


class View(ABC):
    """Shows one run."""

    @abstractmethod
    def showing(self, state: RunState, lock: Lock) -> AbstractContextManager[None]:
        """Show the run while the block lasts.

        Args:
            state: is read while `lock` is held.
        """

    @abstractmethod
    def update(self, event: Event) -> None:
        """Something happened; `state` has it already."""

    @abstractmethod
    def refresh(self, state: RunState) -> None:
        """Show another state of the same run, of one that this process does not run itself."""

    @abstractmethod
    def ended(self, state: RunState, lines: Sequence[str]) -> None:
        """The run has ended.

        Args:
            lines: what a person should be told.
        """


class Silence(View):
    """Shows nothing: the record is kept all the same."""

    @contextmanager
    def showing(self, state: RunState, lock: Lock) -> Iterator[None]:
        """See View.showing."""
        yield

    def update(self, event: Event) -> None:
        """See View.update."""

    def refresh(self, state: RunState) -> None:
        """See View.refresh."""

    def ended(self, state: RunState, lines: Sequence[str]) -> None:
        """See View.ended."""


class PlainView(View):
    """One line for each thing that happens.

    Args:
        verbose: what the steps write, too.
    """

    def __init__(self, *, verbose: bool = False, stream: TextIO | None = None):
        self._verbose = verbose
        self._stream = stream or sys.stderr
        self._seen: dict[str, tuple[Phase, int, float | None, str]] = {}
        self._progress_at: dict[str, float] = {}
        self._stopping = ""

    @contextmanager
    def showing(self, state: RunState, lock: Lock) -> Iterator[None]:
        """See View.showing."""
        self._state, self._lock = state, lock
        self._say(f"run {state.run_id}: steps {', '.join(state.nodes)}")
        yield

    def update(self, event: Event) -> None:
        """See View.update."""
        if isinstance(event, LogLine):
            if self._verbose:
                self._say(f"{event.node} | {printable(event.line)}")
            return
        with self._lock:
            self.refresh(self._state)

    def refresh(self, state: RunState) -> None:
        """See View.refresh."""
        now = time.time()
        if state.stopping != self._stopping:
            self._stopping = state.stopping
            self._say(f"stopping: {state.stopping}")
        for node in state.nodes.values():
            now_seen = (node.phase, node.attempt, node.retry_at, node.waiting)
            if self._seen.get(node.name, (Phase.PENDING, -1, None, "")) != now_seen:
                self._seen[node.name] = now_seen
                self._say(f"{node.name} {self._happened(state, node, now)}".rstrip())
            elif node.phase == Phase.RUNNING and node.progress:
                self._tell_progress(state, node, now)

    def ended(self, state: RunState, lines: Sequence[str]) -> None:
        """See View.ended."""
        for line in lines:
            tell(line, self._stream)

    def _happened(self, state: RunState, node: NodeState, now: float) -> str:
        if node.phase == Phase.RUNNING:
            return f"started, attempt {node.attempt + 1}" if node.attempt > 0 else "started"
        seconds = node_seconds(node, now)
        after = f" after {took(seconds)}" if seconds is not None and node.phase.ended else ""
        said = detail(state, node, now, _LINE_CHARS)
        word = "waits" if node.phase == Phase.PENDING else node.phase.lower()
        return f"{word}{after}" + (f": {printable(said)}" if said else "")

    def _tell_progress(self, state: RunState, node: NodeState, now: float) -> None:
        if now - self._progress_at.get(node.name, 0) >= _PROGRESS_EVERY_S:
            self._progress_at[node.name] = now
            self._say(f"{node.name} {detail(state, node, now, _LINE_CHARS)}")

    def _say(self, text: str) -> None:
        tell(f"{time.strftime('%H:%M:%S')} {text}", self._stream)


class JsonView(View):
    """Every event as a JSON object on a line of stdout.

    Args:
        verbose: what the steps write, too.
    """

    def __init__(self, *, verbose: bool = False, stream: TextIO | None = None):
        self._verbose = verbose
        self._stream = stream or sys.stdout

    @contextmanager
    def showing(self, state: RunState, lock: Lock) -> Iterator[None]:
        """See View.showing."""
        self._say({"event": "RunStarted", "run_id": state.run_id, "time": state.started, "nodes": list(state.nodes)})
        yield

    def update(self, event: Event) -> None:
        """See View.update."""
        if self._verbose or not isinstance(event, LogLine):
            self._say(event.as_json())

    def refresh(self, state: RunState) -> None:
        """See View.refresh."""
        self._say({"event": "State", **state.model_dump(mode="json")})

    def ended(self, state: RunState, lines: Sequence[str]) -> None:
        """See View.ended."""
        kept = {"run_id", "phase", "exit_code", "message"}
        self._say({"event": "RunFinished", "time": state.finished, **state.model_dump(mode="json", include=kept)})

    def _say(self, value: dict[str, object]) -> None:
        tell(json.dumps(value, ensure_ascii=False), self._stream)


def tell(text: str, stream: TextIO) -> None:
    """Print a line. A reader that is gone (`| head`), or a disk that is full, ends the telling, not the run."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def choose_view(*, json_lines: bool = False, verbose: bool = False) -> View:
    """The view for where the output goes."""
    if json_lines:
        return JsonView(verbose=verbose)
    if not sys.stderr.isatty():
        return PlainView(verbose=verbose)
    from pipelines.live import LiveView

    return LiveView(verbose=verbose)
