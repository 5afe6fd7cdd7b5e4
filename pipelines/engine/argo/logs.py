"""What the pods of a workflow write, each attempt into a file of its own, as it comes.

Argo's executor starts the step's process and writes into the same log; its lines are left out.
"""

import re
import threading
from collections.abc import Callable
from pathlib import Path

from pipelines.engine.argo.workflows import Workflows
from steps.lib.errors import TripodError
from steps.lib.log_parts import timed

_AGAIN_S = 1.0
_LONG_AGO = "1970-01-01T00:00:00.000000000Z"
_EXECUTORS = re.compile(rb'time=\S+ level=\w+ .*\bargo=true\b.*|\{"time":.*"argo":true.*')
"""Argo marks its own lines so that they can be told apart, in the text and the JSON format."""
_EXITED = b"sub-process exited"
_EXECUTORS_LAST = re.compile(rb"Error: exit status \d+")


class PodLog:
    """Follows one attempt's pod in a thread of its own.

    Args:
        run: name of the workflow.
        path: gets every line that it writes, behind its time (steps.lib.log_parts.timed).
        line: called with each line, and whether the step wrote it.
        live: wait for lines to come, rather than read what is there again and again.
    """

    def __init__(
        self, workflows: Workflows, run: str, pod: str, path: Path, line: Callable[[str, bool], None], *, live: bool
    ):
        self._workflows, self._run, self._pod = workflows, run, pod
        self._path, self._line = path, line
        self._ended, self._dropped = threading.Event(), False
        self._last, self._exited = "", False
        self._live = live
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._thread = threading.Thread(target=self._follow, name=f"log {pod}", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float = 10) -> None:
        """The attempt has ended: take what is still to come, and stop."""
        self._ended.set()
        self._thread.join(timeout_s)

    def drop(self) -> None:
        """Nobody listens any more."""
        self._dropped = True
        self._ended.set()

    def _follow(self) -> None:
        while not self._dropped:
            last_time = self._ended.is_set()
            try:
                self._read(follow=self._live and not last_time)
                if last_time and not self._last and not self._workflows.has_pod(self._run, self._pod):
                    self._tell(f"warning: pod {self._pod} is gone, and what it wrote with it".encode(), steps=False)
            except (TripodError, OSError) as e:  # the latter: no room for the copy
                if last_time:
                    self._line(f"warning: the log is not whole: {e}", False)
            if last_time:
                return
            self._ended.wait(_AGAIN_S)

    def _read(self, *, follow: bool) -> None:
        for time_of, line in self._workflows.log(self._run, self._pod, follow=follow, since=self._last):
            self._last = time_of
            if _EXECUTORS.fullmatch(line):
                self._exited = self._exited or _EXITED in line
            elif not (self._exited and _EXECUTORS_LAST.fullmatch(line)):
                self._tell(line)

    def _tell(self, line: bytes, *, steps: bool = True) -> None:
        if self._dropped:  # the folder may be gone
            return
        line = line.replace(b"\0", b"\\0")
        with self._path.open("ab") as file:
            file.write(timed(self._last or _LONG_AGO, line) + b"\n")
        self._line(line.decode(errors="replace").rstrip("\r"), steps)
