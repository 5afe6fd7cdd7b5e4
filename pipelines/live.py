"""The live view: a table of the steps that is redrawn in place.

✔ ingest            1.2s  hit: recorded by run tiny-1
▸ train            32.0s  ━━━─────── 120/1500  loss 3.210  12.3k tok/s  eta 2m 10s
  evaluate                waits for train
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from pipelines.engine.events import Event, LogLine, Phase
from pipelines.run_state import NodeState, RunState
from pipelines.telling import detail, node_seconds, printable, took
from pipelines.view import View

SYMBOLS = {
    Phase.PENDING: (" ", " ", "dim"),
    Phase.RUNNING: ("▸", ">", "bold cyan"),
    Phase.SUCCEEDED: ("✔", "+", "green"),
    Phase.FAILED: ("✗", "x", "bold red"),
    Phase.ERROR: ("✗", "x", "bold red"),
    Phase.SKIPPED: ("·", ".", "dim"),
    Phase.OMITTED: ("·", ".", "dim"),
}
"""Phase -> symbol, the same in ASCII, style."""
_REDRAWS_PER_S = 4
_LOG_LINES = 3
_TIME_CHARS = 7


class LiveView(View):
    """A table that is redrawn in place.

    Args:
        verbose: the last lines of each running step, too.
    """

    def __init__(self, *, verbose: bool = False, console: Console | None = None):
        self._verbose = verbose
        self._console = console or Console(stderr=True)
        self._last: dict[str, deque[str]] = {}

    @contextmanager
    def showing(self, state: RunState, lock: Lock) -> Iterator[None]:
        """See View.showing."""
        self._state, self._lock = state, lock
        with Live(console=self._console, get_renderable=lambda: self, refresh_per_second=_REDRAWS_PER_S):
            yield

    def update(self, event: Event) -> None:
        """See View.update."""
        if isinstance(event, LogLine) and self._verbose and not event.line.startswith("progress "):
            self._last.setdefault(event.node, deque(maxlen=_LOG_LINES)).append(printable(event.line))

    def refresh(self, state: RunState) -> None:
        """See View.refresh."""
        self._state = state

    def ended(self, state: RunState, lines: Sequence[str]) -> None:
        """See View.ended."""
        for line in lines:
            self._console.print(Text(printable(line)), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as it is now."""
        with self._lock:
            yield self._table(self._state, options, time.time())

    def _table(self, state: RunState, options: ConsoleOptions, now: float) -> RenderableType:
        width = options.max_width
        shown = state.shown()
        name_chars = min(max(len(node.name) for node in shown), max(12, width // 4))
        lines = [self._heading(state, now, width)]
        for node in shown:
            lines.append(self._row(state, node, now, name_chars, options))
            lines += self._log_of(state, node, width)
        if state.stopping:
            lines.append(Text(f"stopping: {state.stopping}", "yellow"))
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Group(*lines)

    def _heading(self, state: RunState, now: float, width: int) -> Text:
        left = Text.assemble((state.run_id, "bold"), "  ", state.phase)
        right = took((state.finished or now) - state.started)
        left.truncate(max(0, width - len(right) - 1), overflow="ellipsis")
        return left + " " * max(1, width - left.cell_len - len(right)) + right

    def _row(self, state: RunState, node: NodeState, now: float, name_chars: int, options: ConsoleOptions) -> Text:
        symbol, plain_symbol, style = SYMBOLS[node.phase]
        if node.phase == Phase.SUCCEEDED and node.cache.startswith("hit"):
            style = "cyan"
        seconds = node_seconds(node, now)
        name = node.name if len(node.name) <= name_chars else node.name[: name_chars - 1] + "…"
        row = Text.assemble(
            (plain_symbol if options.ascii_only else symbol, style),
            f" {name:<{name_chars}} ",
            f"{'' if seconds is None else took(seconds):>{_TIME_CHARS}}  ",
        )
        said = printable(detail(state, node, now, max(0, options.max_width - row.cell_len)))
        said = said.replace("━", "#").replace("─", "-").replace("…", "~") if options.ascii_only else said
        return row.append(said, style if node.phase.bad else "dim" if node.phase != Phase.RUNNING else "")

    def _log_of(self, state: RunState, node: NodeState, width: int) -> list[Text]:
        running = [n for n in (node, *state.items_of(node.name)) if n.phase == Phase.RUNNING]
        return [Text(f"    {line}", "dim") for n in running for line in self._last.get(n.name, ())]
