"""Processes that the lab starts: each has a pid file, and is known by its pid and start time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

STOP_S = 15.0


class CommandError(SystemExit):
    """A command failed; uncaught it ends the program with one line."""


def run(*words: str | Path, stdin: str = "", check: bool = True, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its end; its stdout.

    Raises:
        CommandError: it failed; has what it said.
    """
    done = subprocess.run(
        [str(word) for word in words],
        input=stdin or None,
        stdin=None if stdin else subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if check and done.returncode:
        raise CommandError(
            f"error: {' '.join(str(w) for w in words)}: exit code {done.returncode}: {done.stderr[-800:]}"
        )
    return done.stdout


def start(
    folder: Path,
    name: str,
    argv: Sequence[str | Path],
    *,
    netns: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Start a program in the background, unless it runs. It writes to folder/log/name.log.

    Args:
        netns: file of a network namespace; entered by nsenter, since `ip netns exec` hides /sys/fs/cgroup.
    """
    if is_alive(folder, name):
        return
    (folder / "log").mkdir(parents=True, exist_ok=True)
    enter = ["nsenter", f"--net={netns}"] if netns else []
    with open(folder / f"log/{name}.log", "ab") as log:
        process = subprocess.Popen(
            [*enter, *(str(word) for word in argv)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    (folder / f"{name}.pid").write_text(f"{process.pid} {_started(process.pid)}")


def is_alive(folder: Path, name: str) -> bool:
    """Whether the process of the pid file runs."""
    return pid_of(folder, name) is not None


def pid_of(folder: Path, name: str) -> int | None:
    """Its pid while it runs."""
    return _pid(folder / f"{name}.pid")


def stop(folder: Path, name: str) -> None:
    """End it: SIGTERM, then SIGKILL."""
    file = folder / f"{name}.pid"
    if (pid := _pid(file)) is not None:
        os.kill(pid, signal.SIGTERM)
        if not eventually(lambda: _pid(file) is None, STOP_S):
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: _pid(file) is None, STOP_S)
    file.unlink(missing_ok=True)


def eventually(done: Callable[[], object], seconds: float, every_s: float = 0.2) -> bool:
    """Whether `done()` becomes true in time."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True


def wait_for(done: Callable[[], object], what: str, seconds: float = 120, every_s: float = 0.5) -> None:
    """Wait, and end with one line when it takes too long."""
    if not eventually(done, seconds, every_s):
        raise SystemExit(f"error: {what}: not within {seconds:.0f} s; logs are in the lab's run/*/log")


def _pid(file: Path) -> int | None:
    if not file.exists():
        return None
    pid, started = file.read_text().split()
    return int(pid) if _started(int(pid)) == started else None


def _started(pid: int) -> str:
    """Start time in clock ticks, proc(5) field 22; "" when there is no such process, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] == "Z" else fields[19]
