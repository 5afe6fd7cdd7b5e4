"""Run a command that ends with its parent, unless the parent says that it may stay.

    python guard.py COMMAND [ARG ...]        stdin: a pipe whose other end the parent holds

    the pipe closes        the parent is gone, however it died: the command and all its children end
    a byte comes           the command stays; the pipe no longer matters
    SIGTERM, SIGINT        the command and all its children end
    the command ends       so do its children; exit code is the command's, 128 + n for signal n
    SIGKILL                the kernel tells the command to end (Linux); nobody is left to see to it

The command leads a process group of its own. Run as a file, so that it starts in milliseconds.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

GRACE_S = 10.0
"""From SIGTERM to SIGKILL."""
_PR_SET_PDEATHSIG = 1


class _End(BaseException):
    """Told to stop, or the parent is gone."""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    ends = (signal.SIGTERM, signal.SIGINT)
    for signum in ends:
        signal.signal(signum, _end)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # until the command can be ended with us
    prctl, us = getattr(ctypes.CDLL(None), "prctl", None), os.getpid()

    def become_command() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        if prctl:
            prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != us:  # gone before the kernel was asked
                os.kill(os.getpid(), signal.SIGTERM)

    command = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=become_command)
    code = 128 + signal.SIGTERM
    try:
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
        code = command.wait()
    except _End:
        pass
    end_group(command)
    return code if code >= 0 else 128 - code


def end_group(leader: "subprocess.Popen[bytes]") -> None:
    """SIGTERM to the whole group of `leader`, SIGKILL to what is left after the grace time."""
    deadline = time.monotonic() + GRACE_S
    _signal_group(leader.pid, signal.SIGTERM)
    while _signal_group(leader.pid, 0) and time.monotonic() < deadline:
        leader.poll()  # a dead leader that nobody waited for still counts as a member
        time.sleep(0.05)
    _signal_group(leader.pid, signal.SIGKILL)
    leader.wait()


def _watch(pipe: int) -> None:
    if os.read(pipe, 1) == b"":
        os.kill(os.getpid(), signal.SIGTERM)


def _end(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise _End


def _signal_group(group: int, signum: int) -> bool:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
