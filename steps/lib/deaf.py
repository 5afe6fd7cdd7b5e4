"""A stream whose reader may leave: the work matters more than what is said of it."""

from contextlib import suppress
from typing import Any, TextIO


class Deaf:
    """Goes on when nobody reads any more (a pipe that was closed, a terminal that is gone) or a disk is full."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def write(self, text: str) -> int:
        """Write, or do nothing where that fails."""
        with suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush, or do nothing where that fails."""
        with suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
