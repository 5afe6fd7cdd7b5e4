"""The logs of a run's steps, and of the pods that they start, in the store, in parts, while they run.

    runs/<id>/logs/<node>/<attempt>/part-00000.log, part-00001.log, ...

An attempt writes one local file; here its growth is copied. Parts come about every second at first
and less often as their number grows, so that a month of training is not a million objects.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steps.lib.store import ConflictError, NotFoundError, Store

EAGER_BYTES = 64 << 10
"""That much waiting is copied without delay."""
MAX_PART_BYTES = 1 << 20
_FIRST_S, _LAST_S = 1.0, 30.0
_PARTS_A_SECOND_MORE = 20


@dataclass
class LogCopy:
    """Copies one attempt's log file to the store as it grows."""

    store: Store
    prefix: str
    path: Path
    ended: bool = False
    """Whether the file will grow no more."""
    shared: bool = False
    """Whether others copy the same text too, or have before: what is in the store already is not written again."""
    _offset: int = 0
    _part: int = 0
    _last: float = 0.0
    _looked: bool = False

    @property
    def done(self) -> bool:
        """Whether all of it is in the store."""
        return self.ended and self._waiting() <= 0

    def copy(self) -> None:
        """Write what is due."""
        if self.shared and not self._looked:
            self._skip_stored()
        waiting = self._waiting()
        every_s = min(_LAST_S, _FIRST_S + self._part / _PARTS_A_SECOND_MORE)
        due = self.ended or waiting >= EAGER_BYTES or time.monotonic() - self._last >= every_s
        if waiting <= 0 or not due:
            return
        write = self.store.create if self.shared else self.store.put
        with self.path.open("rb") as file:
            file.seek(self._offset)
            while data := file.read(MAX_PART_BYTES):
                try:
                    write(part_key(self.prefix, self._part), data)
                except ConflictError:  # another was faster
                    return self._skip_stored()
                self._offset += len(data)
                self._part += 1
        self._last = time.monotonic()

    def _skip_stored(self) -> None:
        sizes = [head.size for head in self.store.list(self.prefix)]
        self._offset, self._part, self._looked = sum(sizes), len(sizes), True

    def _waiting(self) -> int:
        return (self.path.stat().st_size if self.path.exists() else 0) - self._offset


def log_prefix(run_id: str, node: str, attempt: int) -> str:
    """Where the log of one attempt is."""
    return f"runs/{run_id}/logs/{node}/{attempt}"


def part_key(prefix: str, part: int) -> str:
    """Key of a part of a log."""
    return f"{prefix}/part-{part:05d}.log"


class LogReader:
    """Reads one attempt's log from the store, also while it grows."""

    def __init__(self, store: Store, prefix: str):
        self._store = store
        self._prefix = prefix
        self._part = 0
        self._rest = b""

    def lines(self, *, last: bool) -> Iterator[str]:
        """The whole lines that have come since the last call.

        Args:
            last: nothing more will come, so a line without an end counts too.
        """
        while True:
            try:
                data = self._store.get(part_key(self._prefix, self._part))
            except NotFoundError:
                break
            self._part += 1
            *whole, self._rest = (self._rest + data).split(b"\n")
            yield from (line.decode(errors="replace").rstrip("\r") for line in whole)
        if last and self._rest:
            yield self._rest.decode(errors="replace")
            self._rest = b""
