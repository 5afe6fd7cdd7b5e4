"""How states, times, exit codes and what programs wrote are put into words; one place for every view."""

import re
from collections.abc import Callable, Mapping

from pipelines.engine.events import Phase
from pipelines.run_state import NodeState, RunState
from steps.lib.errors import Exit

MEANINGS = {
    Exit.BUG: "a bug",
    Exit.USER: "wrong input or settings, or refused",
    Exit.REJECTED: "a gate or the data said no",
    Exit.TEMPORARY: "temporary, may succeed when tried again",
    Exit.PREEMPTED: "told to stop, checkpoint saved",
    Exit.CANCELLED: "cancelled",
}
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_BAR_CHARS = 8
_WIDE_BAR_CHARS = 30
_WIDE = 90


def took(seconds: float) -> str:
    """A length of time: `0.4s`, `12.3s`, `2m 05s`, `3h 07m`, `2d 04h`."""
    if seconds < 59.95:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    for unit, part, size in (("d", "h", 86400), ("h", "m", 3600), ("m", "s", 60)):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // (size // 24 if unit == 'd' else size // 60):02d}{part}"
    return f"{whole}s"


def state_word(state: RunState) -> str:
    """The state of a run in one word; Argo has none for what a person has ended."""
    return "Cancelled" if state.exit_code == Exit.CANCELLED else state.phase


def printable(text: str) -> str:
    """The text without what would move a terminal's cursor or change its colours."""
    return _CONTROL.sub("", text)


def one_line(text: str, width: int) -> str:
    """The text in one line of at most `width` characters: line breaks and the like as escapes."""
    return _cut("".join(char if char.isprintable() else repr(char)[1:-1] for char in text), width)


def meaning(code: int | None) -> str:
    """What an exit code says, with the code: `exit 3: a gate or the data said no`."""
    if code is None:
        return "no process ran"
    if code >= 128 and code != Exit.CANCELLED:
        return f"exit {code}: ended by signal {code - 128}"
    return f"exit {code}: {MEANINGS[Exit(code)]}" if code in MEANINGS else f"exit {code}"


def detail(state: RunState, node: NodeState, now: float, width: int) -> str:
    """What is to be said of a node in one line of at most `width` characters."""
    items = state.items_of(node.name)
    if node.phase == Phase.RUNNING:
        again = f"attempt {node.attempt + 1}  " if node.attempt > 0 else ""
        return _cut(again + (_counts(items) if items else progress_line(node.progress, width - len(again))), width)
    if node.phase == Phase.PENDING:
        return _cut(_why_it_waits(state, node, now), width)
    if node.phase.bad:
        return _cut(_failure(node), width)
    if node.phase == Phase.SUCCEEDED:
        return _cut(_counts(items) if items else node.cache, width)
    return _cut(node.message, width)


def progress_line(values: Mapping[str, str], width: int) -> str:
    """A step's progress: a bar when it counts steps, then as many of its numbers as fit."""
    parts = [] if values.get("phase", "training") == "training" else [values["phase"]]
    step, steps = _number(values, "step"), _number(values, "steps")
    if step is not None and steps:
        size = _WIDE_BAR_CHARS if width >= _WIDE else _BAR_CHARS
        parts.append(f"{bar(step / steps, size)} {step:.0f}/{steps:.0f}")
    parts += [text for text in (write(values) for write in _PROGRESS_PARTS) if text]
    between = "  " if width >= _WIDE else " "
    line = ""
    for part in parts:
        longer = f"{line}{between}{part}" if line else part
        line = longer if len(longer) <= width else line
    return line


def bar(share: float, size: int) -> str:
    """A bar of `size` characters, `share` of it (0 to 1) filled."""
    filled = round(min(1.0, max(0.0, share)) * size)
    return "━" * filled + "─" * (size - filled)


def node_seconds(node: NodeState, now: float) -> float | None:
    """How long a node has taken, waits for retries counted; None when it has not started."""
    return None if node.started is None else (node.finished or now) - node.started


def summary(state: RunState, last_lines: Callable[[NodeState], list[str]]) -> list[str]:
    """What to say at the end of a run: how it ended, of a failure the reason, and the next commands.

    Args:
        last_lines: gives the end of a node's log.
    """
    run = state.run_id
    time_taken = took((state.finished or state.started) - state.started)
    if state.phase == "Succeeded":
        hits = sum(node.cache.startswith("hit") for node in state.nodes.values())
        return [
            f"run {run} succeeded in {time_taken}, {hits} steps from their records",
            *_next(f"status {run}", f"logs {run}"),
        ]
    if state.phase == "Lost":
        return [f"run {run} was {state.message}", *_next(f"resume {run}", f"logs {run}")]
    if state.exit_code == Exit.CANCELLED:
        return [
            f"run {run} was cancelled after {time_taken}; finished steps are kept",
            *_next(f"resume {run}", f"logs {run}"),
        ]
    node = state.failed_node()
    if node is None:
        return [f"run {run} failed after {time_taken}: {state.message}", *_next(f"status {run}", f"logs {run}")]
    lines = [f"run {run} failed after {time_taken} in {node.name}, {meaning(node.exit_code)}", f"  {node.message}"]
    tail = last_lines(node)
    lines += [f"last lines of {node.name}:", *(f"  | {line}" for line in tail)] if tail else []
    return [*lines, *_next(f"logs {run} {node.name}", f"resume {run}")]


def _next(*verbs: str) -> list[str]:
    commands = [f"python -m pipelines.runs {verb}" for verb in verbs]
    return [f"next: {commands[0]}", *(f"      {command}" for command in commands[1:])]


def _counts(items: list[NodeState]) -> str:
    done = sum(item.phase in (Phase.SUCCEEDED, Phase.SKIPPED) for item in items)
    hits = sum(item.cache.startswith("hit") for item in items)
    failed = sum(item.phase.bad for item in items)
    parts = [f"{done} of {len(items)} done", f"{hits} hits" if hits else "", f"{failed} failed" if failed else ""]
    return ", ".join(part for part in parts if part)


def _why_it_waits(state: RunState, node: NodeState, now: float) -> str:
    if state.phase != "Running":
        return "not started"
    if node.retry_at is not None:
        wait = f"again in {took(max(0, node.retry_at - now))}" if node.retry_at > now else "again when there is room"
        return f"attempt {node.attempt + 1} failed, {wait}; {_failure(node)}"
    if node.waiting:
        return f"cannot start: {node.waiting}"
    open_ones = [name for name in node.waits_for if name in state.nodes and not state.nodes[name].phase.ended]
    return f"waits for {', '.join(open_ones)}" if open_ones else ""


def _failure(node: NodeState) -> str:
    return f"exit {node.exit_code}: {node.message}" if node.exit_code else node.message


def _number(values: Mapping[str, str], name: str) -> float | None:
    try:
        return float(values[name])
    except (KeyError, ValueError):
        return None


def _write(name: str, form: Callable[[float], str]) -> Callable[[Mapping[str, str]], str]:
    def write(values: Mapping[str, str]) -> str:
        number = _number(values, name)
        return "" if number is None else form(number)

    return write


def _rate(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit} tok/s"
    return f"{number:.0f} tok/s"


_PROGRESS_PARTS = (
    _write("loss", lambda n: f"loss {n:.3f}"),
    _write("tokens_per_s", _rate),
    _write("eta_s", lambda n: f"eta {took(n)}"),
    _write("mfu", lambda n: f"mfu {n:.1%}"),
    _write("lr", lambda n: f"lr {n:.2e}"),
)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
