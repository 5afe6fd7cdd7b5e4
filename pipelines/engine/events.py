"""What a running workflow tells its listeners, and what is left when it has ended.

    NodeStarted   an attempt of a node starts            NodeFinished  a node has its final state
    NodeRetried   an attempt failed, another follows     LogLine, Progress   what a step wrote
    NodeReady     a node is known and waits              RunStopping   the run was asked to stop
    NodeWaits     its pod cannot start, and why (on a cluster)

A node is a task, one item of a task that fans out (`tokenize.3`), or the exit handler (`onExit`).
Listeners are called one event at a time, from the engine's threads; they must be quick.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

EXIT_NODE = "onExit"
"""Name of the exit handler's node."""


class Phase(StrEnum):
    """State of a node or a run, in Argo's words."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    """The step failed."""
    ERROR = "Error"
    """The engine could not run the step, or take its outputs."""
    SKIPPED = "Skipped"
    """Its condition did not hold, or there was no item."""
    OMITTED = "Omitted"
    """Something that it depends on did not succeed."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self not in (Phase.PENDING, Phase.RUNNING)

    @property
    def bad(self) -> bool:
        """Whether it makes the run fail."""
        return self in (Phase.FAILED, Phase.ERROR)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Anything that happened to a node."""

    node: str
    time: float
    """Seconds since the epoch."""

    def as_json(self) -> dict[str, Any]:
        """The event with its kind, ready for JSON."""
        return {"event": type(self).__name__} | {
            name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()
        }


@dataclass(frozen=True, kw_only=True)
class NodeReady(Event):
    """The node waits for its turn."""


@dataclass(frozen=True, kw_only=True)
class NodeWaits(Event):
    """The node could run, but what runs it cannot start yet."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class NodeStarted(Event):
    """A process starts."""

    attempt: int
    """From 0."""
    log: Path
    """Local file that gets all that it writes."""


@dataclass(frozen=True, kw_only=True)
class NodeRetried(Event):
    """An attempt failed; the next one starts after a wait."""

    attempt: int
    """The one that failed, from 0."""
    exit_code: int
    message: str
    wait_s: float


@dataclass(frozen=True, kw_only=True)
class NodeFinished(Event):
    """The node has its final state."""

    phase: Phase
    attempt: int
    """The last one, from 0; -1 when none ran."""
    exit_code: int | None
    message: str
    outputs: dict[str, str]
    cache: str
    """`hit: why` or `miss: why`, as the step told; "" when it did not."""


@dataclass(frozen=True, kw_only=True)
class LogLine(Event):
    """One line of a step's stdout or stderr, without its newline."""

    attempt: int
    line: str


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """A step's line `progress key=value ...`."""

    values: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RunStopping(Event):
    """The run was asked to stop; the node is ""."""

    reason: str
    grace_s: float
    """Processes that still run after it are killed; 0: a cluster decides."""


Listener = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class NodeResult:
    """How one node ended."""

    phase: Phase
    exit_code: int | None = None
    """Of the last attempt; None when none ran."""
    message: str = ""
    """One line: why it is not Succeeded."""
    outputs: dict[str, str] = field(default_factory=dict)
    attempts: int = 0
    wall_s: float = 0
    """Of all attempts together, waits between them not counted."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    phase: Phase
    exit_code: int
    """0, or the code of the first step that failed, or 130 when a person stopped the run."""
    message: str
    """One line naming the node that failed and why; "" when all is well."""
    nodes: dict[str, NodeResult]
