"""What the lines of an attempt say, wherever it runs: why it fails, how far it is."""

import time
from collections.abc import Iterator

from pipelines.engine.events import Event, LogLine, Progress


class Said:
    """Takes the lines of one attempt, one after the other."""

    def __init__(self, node: str, attempt: int):
        self._node, self._attempt = node, attempt
        self._error = self._last = ""

    @property
    def why(self) -> str:
        """The last `error: ...`, else the last line that says anything; "" when there is none."""
        return self._error or self._last

    def failed(self, problem: str) -> None:
        """Something else went wrong, which the step may not have said."""
        self._error = self._error or problem

    def take(self, line: str, *, steps: bool = True) -> Iterator[Event]:
        """The events that a line is.

        Args:
            steps: the step has written it.
        """
        now = time.time()
        if steps:
            self._error = line.removeprefix("error: ") if line.startswith("error: ") else self._error
            self._last = line.strip() or self._last
        if line.startswith("progress "):
            values = dict(pair.split("=", 1) for pair in line.split()[1:] if "=" in pair)
            yield Progress(node=self._node, time=now, values=values)
        yield LogLine(node=self._node, time=now, attempt=self._attempt, line=line)
