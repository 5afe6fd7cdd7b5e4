"""Processes of this machine: one is known by its pid and when it started, since pids come back."""

import os
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """Where pids mean the same: two processes with one place can see each other."""

    host: str
    boot_id: str
    """Of this start of the machine; "" where the system has none."""
    pid_space: str
    """The process namespace that pids count in: containers of one machine have their own."""


def place() -> Place:
    """Of this process."""
    space = "/proc/self/ns/pid"
    return Place(socket.gethostname(), boot_id(), os.readlink(space) if os.path.lexists(space) else "")


def boot_id() -> str:
    """Of this start of the machine; "" where the system has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def started(pid: int) -> str:
    """When process `pid` started, in the system's own form; "" when it is gone, a zombie or hidden."""
    if not _has_proc():
        return _started_by_ps(pid)
    fields = _stat(pid)
    return "" if fields is None or _is_dead(fields) else fields[22 - 3]


def is_alive(pid: int, since: str) -> bool:
    """Whether the process `pid` that started at `since` still runs; one that is hidden from us counts as alive."""
    if not _has_proc():
        return _started_by_ps(pid) == since
    fields = _stat(pid)
    if fields is None:
        return _is_hidden(pid)
    return not _is_dead(fields) and fields[22 - 3] == since


def _has_proc() -> bool:
    return Path("/proc/self/stat").exists()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the third, the state, on (proc(5)); None when there is none.

    The 22nd is the start, clock ticks since boot; the name before the third may hold anything.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):  # the latter when it ends between open and read
        return None


def _is_dead(fields: list[str]) -> bool:
    return fields[0] in "ZX"


def _is_hidden(pid: int) -> bool:
    """Whether another user's process lives where /proc does not show it (hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _started_by_ps(pid: int) -> str:
    shown = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, since = shown.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else since.strip()
