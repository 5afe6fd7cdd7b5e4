"""One process of one step: start it, keep its log, take its outputs.

The process gets a session of its own, so that a signal reaches it and all that it started, and
nothing that is typed at the terminal does. Once it has ended, what is left of its process group is
killed: a server that is meant to stay has to make a session of its own.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from pipelines.engine.events import Event, Phase
from pipelines.engine.said import Said
from pipelines.engine.templates import Output
from steps.lib.errors import Exit
from steps.runner import CACHE_FILE

_MAX_LINE_BYTES = 1 << 20
_DRAIN_S = 1.0
"""How long the log is still read once the process has ended, while something else holds it open."""


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """How one attempt ended."""

    phase: Phase
    exit_code: int | None
    """As a shell gives it, 128 + n for death by signal n; None when there was no process."""
    message: str
    wall_s: float
    outputs: dict[str, str] = field(default_factory=dict)
    cache: str = ""


class _OutputError(Exception):
    """An output parameter cannot be taken."""


class _Log:
    """A file that takes what it can: a step must not block on a pipe that no one reads because a disk is full."""

    def __init__(self, path: Path):
        self._path = path
        self._problem = ""
        try:
            self._file: BinaryIO | None = path.open("wb")
        except OSError as e:
            self._file, self._problem = None, f"{path}: {e.strerror}"

    def write(self, data: bytes) -> None:
        try:
            if self._file:
                self._file.write(data)
                self._file.flush()  # readers follow it; after a failure what is kept is tried again with the next
        except OSError as e:
            self._problem = f"{self._path}: {e.strerror}"

    def close(self) -> str:
        """What has been lost to, or ""."""
        try:
            if self._file:
                self._file.close()
        except OSError as e:
            self._problem = f"{self._path}: {e.strerror}"
        return self._problem


class Attempt:
    """Runs once. `run` blocks in a worker thread; `stop` and `kill` come from other threads.

    Args:
        node: whose attempt it is.
        number: which one, from 0.
        folder: a folder of its own; gets `log` and `outputs/`.
        outputs: what to take from it.
        emit: where its lines go.
    """

    def __init__(
        self,
        *,
        node: str,
        number: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        outputs: Sequence[Output],
        emit: Callable[[Event], None],
    ):
        self.node = node
        self.number = number
        self.log = folder / "log"
        self._argv = [sys.executable if argv[0] == "python" else argv[0], *argv[1:]]
        self._outputs_folder = folder / "outputs"
        self._env = {**env, "TRIPOD_OUTPUTS": str(self._outputs_folder), "TRIPOD_PARENT": str(os.getpid())}
        self._outputs = outputs
        self._emit = emit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._stop_reason = ""
        self._expired = False
        self._said = Said(node, number)

    def stop(self, reason: str, *, expired: bool = False) -> None:
        """Ask the process and its children to end (SIGTERM).

        Args:
            reason: goes into the result's message.
            expired: the attempt counts as failed, whatever it says.
        """
        with self._lock:
            self._stop_reason = self._stop_reason or reason
            self._expired = self._expired or expired
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and its children now (SIGKILL)."""
        with self._lock:
            self._stop_reason = self._stop_reason or "killed"
            self._signal(signal.SIGKILL)

    def run(self) -> AttemptResult:
        """Start the process and wait for its end.

        The calling thread has to live as long as the process: the kernel counts the death of the
        thread as that of the parent (prctl(2), PR_SET_PDEATHSIG).
        """
        started = time.monotonic()
        self._outputs_folder.mkdir(parents=True)
        with self._lock:
            if self._stop_reason:
                return AttemptResult(phase=Phase.FAILED, exit_code=None, message=self._stop_reason, wall_s=0)
            try:
                self._process = process = self._spawn()
            except (OSError, ValueError) as e:  # no such command, argument too long, a NUL in it
                message = f"{self._argv[0]}: cannot be started: {getattr(e, 'strerror', None) or e}"
                return AttemptResult(phase=Phase.FAILED, exit_code=Exit.USER, message=message, wall_s=0)
        assert process.stdout
        reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True, name=f"log {self.node}")
        reader.start()
        code = self._await_exit(process)
        reader.join(_DRAIN_S)
        if not reader.is_alive():
            process.stdout.close()
        return self._result(code, time.monotonic() - started)

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._argv,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _await_exit(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code. While its leader is not reaped, the group's number belongs to no one else."""
        if sys.platform == "linux":
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        with self._lock:
            self._signal(signal.SIGKILL)
            self._ended = True
        code = process.wait()
        return code if code >= 0 else 128 - code

    def _signal(self, signum: int) -> None:
        if self._process is None or self._ended:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
            os.killpg(self._process.pid, signum)

    def _read(self, pipe: IO[bytes]) -> None:
        log = _Log(self.log)
        while raw := pipe.readline(_MAX_LINE_BYTES):
            raw = raw.replace(b"\0", b"\\0")
            log.write(raw)
            self._line(raw.decode(errors="replace").rstrip("\r\n"))
        if problem := log.close():
            self._line(f"warning: the log is not whole: {problem}")
            self._said.failed(problem)

    def _line(self, line: str) -> None:
        for event in self._said.take(line):
            self._emit(event)

    def _result(self, code: int, wall_s: float) -> AttemptResult:
        cache = self._outputs_folder / CACHE_FILE
        why = cache.read_text(errors="replace") if cache.is_file() else ""
        if code or self._expired:
            message = ": ".join(part for part in (self._stop_reason, self._said.why) if part) or f"exit code {code}"
            return AttemptResult(
                phase=Phase.FAILED, exit_code=code or 128 + signal.SIGTERM, message=message, wall_s=wall_s, cache=why
            )
        try:
            outputs = {output.name: self._take(output) for output in self._outputs}
        except _OutputError as e:
            return AttemptResult(phase=Phase.ERROR, exit_code=code, message=str(e), wall_s=wall_s, cache=why)
        return AttemptResult(
            phase=Phase.SUCCEEDED, exit_code=code, message="", wall_s=wall_s, outputs=outputs, cache=why
        )

    def _take(self, output: Output) -> str:
        """The value of an output parameter: the file's text, less one newline at its end, as Argo takes it."""
        path = self._outputs_folder / output.file
        try:
            return path.read_bytes().decode().removesuffix("\n")
        except FileNotFoundError as e:
            if output.default is not None:
                return output.default
            raise _OutputError(
                f"output parameter {output.name!r}: the step wrote no file {output.file!r}; it has no default"
            ) from e
        except (OSError, UnicodeDecodeError) as e:
            raise _OutputError(
                f"output parameter {output.name!r}: file {output.file!r} cannot be read as text: {e}"
            ) from e
