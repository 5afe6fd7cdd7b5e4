"""The logs of a run's steps, and of the pods that they start, in the store, in parts, while they run.

    runs/<id>/logs/<node>/<attempt>/part-00000.log, part-00001.log, ...

An attempt writes one local file; here its growth is copied. Parts come about every second at first
and less often as their number grows, so that a month of training is not a million objects.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

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
    _offset: int = 0
    _part: int = 0
    _last: float = 0.0

    @property
    def done(self) -> bool:
        """Whether all of it is in the store."""
        return self.ended and self._waiting() <= 0

    def copy(self) -> None:
        """Write what is due."""
        waiting = self._waiting()
        every_s = min(_LAST_S, _FIRST_S + self._part / _PARTS_A_SECOND_MORE)
        due = self.ended or waiting >= EAGER_BYTES or time.monotonic() - self._last >= every_s
        if waiting <= 0 or not due:
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            self._write(file)
        self._last = time.monotonic()

    def _write(self, file: BinaryIO) -> None:
        while data := file.read(MAX_PART_BYTES):
            self.store.put(part_key(self.prefix, self._part), data)
            self._offset += len(data)
            self._part += 1

    def _waiting(self) -> int:
        return (self.path.stat().st_size if self.path.exists() else 0) - self._offset


@dataclass
class SharedLogCopy(LogCopy):
    """Copies a log that others may copy too, or have before: each line once, in order, whoever writes it.

    Every line begins with its time (`timed`), in the file and in the store; what is in the store already is told by
    the time of its last line, so that a file which begins later than the log did, since its head is gone, loses nothing.
    """

    _upto: str | None = None
    """Time of the last line that others have stored; None before the first look."""

    def _write(self, file: BinaryIO) -> None:
        if self._upto is None:
            self._look()
        while lines := file.readlines(MAX_PART_BYTES):
            if unfinished := not lines[-1].endswith(b"\n"):
                lines.pop()
            while news := b"".join(line for line in lines if time_of(line) > (self._upto or "")):
                try:
                    self.store.create(part_key(self.prefix, self._part), news)
                except ConflictError:  # another was faster
                    self._look()
                else:
                    self._part += 1
                    break
            self._offset += sum(map(len, lines))
            if unfinished:
                return

    def _look(self) -> None:
        self._upto = ""
        heads = list(self.store.list(self.prefix))
        self._part = len(heads)
        if heads:
            last = self.store.get(part_key(self.prefix, self._part - 1)).removesuffix(b"\n")
            self._upto = time_of(last[last.rfind(b"\n") + 1 :])  # a line may hold a lone \r


def timed(time: str, text: bytes) -> bytes:
    """A line of a shared log.

    Args:
        time: RFC 3339 in UTC with nine digits; the same length for every line, so that they compare as texts.
    """
    return time.encode() + b" " + text


def time_of(line: bytes) -> str:
    """The time that a line of a shared log begins with."""
    return line.partition(b" ")[0].decode(errors="replace")


def log_prefix(run_id: str, node: str, attempt: int) -> str:
    """Where the log of one attempt is."""
    return f"runs/{run_id}/logs/{node}/{attempt}"


def part_key(prefix: str, part: int) -> str:
    """Key of a part of a log."""
    return f"{prefix}/part-{part:05d}.log"


class LogReader:
    """Reads one attempt's log from the store, also while it grows.

    Args:
        shared: it is a shared log: the times at the beginnings of its lines are left out.
    """

    def __init__(self, store: Store, prefix: str, *, shared: bool = False):
        self._store = store
        self._prefix = prefix
        self._shared = shared
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
            yield from map(self._text, whole)
        if last and self._rest:
            yield self._text(self._rest)
            self._rest = b""

    def _text(self, line: bytes) -> str:
        return (line.partition(b" ")[2] if self._shared else line).decode(errors="replace").rstrip("\r")
