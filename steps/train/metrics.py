"""One line for every step of the trajectory, kept beside the checkpoints.

    checkpoints/<train-key>/metrics/<first>-<last>.jsonl   the steps between two saves, written before the commit

A checkpoint's manifest names the parts that lead to it, so the log of a trajectory is what its newest
checkpoint names: work lost in a kill is not in it, work done again is in it once.
"""

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict

from steps.lib import checkpoint
from steps.lib.store import Store


class Line(BaseModel):
    """One step. Losses and norms that are not finite numbers are None: the log is strict JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    loss: float | None
    """Nats a token over the global batch, before the update."""
    lr: float
    grad_norm: float | None
    """Before clipping."""
    tokens: int
    """Target tokens of this step."""
    skipped: bool
    """The update was not applied, since gradients were not finite."""
    seconds: float
    """Wall time; the only field that differs between two runs of the same trajectory."""
    ids: tuple[int, ...]
    """Samples of the global batch, in order of their position in the stream."""


class MetricsLog:
    """The lines since the last committed checkpoint, and the parts before it.

    Args:
        base: checkpoints/<train-key>.
        parts: keys that the restored checkpoint names.
    """

    def __init__(self, base: str, parts: Iterable[str] = ()):
        self.base = base
        self.parts = tuple(parts)
        self.lines: list[Line] = []

    def add(self, line: Line) -> None:
        """The next step."""
        self.lines.append(line)

    def next_part(self) -> tuple[str, bytes] | None:
        """Key and content of the part that the next checkpoint has to name; None when there is nothing new."""
        if not self.lines:
            return None
        key = f"{self.base}/metrics/{self.lines[0].step:09d}-{self.lines[-1].step:09d}.jsonl"
        return key, "".join(line.model_dump_json() + "\n" for line in self.lines).encode()

    def committed(self, parts: tuple[str, ...], step: int) -> None:
        """A checkpoint that names `parts` is committed at `step`."""
        self.parts = parts
        self.lines = [line for line in self.lines if line.step > step]


def read(store: Store, base: str) -> list[dict[str, Any]]:
    """The log of the trajectory below `base` (checkpoints/<train-key>), one dict a step from 1, in order.

    It ends at the newest committed checkpoint; [] when there is none.
    """
    steps = checkpoint.committed_steps(store, base)
    if not steps:
        return []
    parts = checkpoint.read_meta(store, checkpoint.prefix_of(base, steps[0])).metrics
    return [json.loads(line) for key in parts for line in store.get(key).splitlines()]
