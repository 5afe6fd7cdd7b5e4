"""Every way to fail, and the one table of exit codes.

The command line, the local engine, Argo's retry expression and the training Job's failure policy
all read this table:

    code   name        meaning                                   retried
    0      DONE        finished                                  -
    1      BUG         ours: an exception nobody expected        no
    2      USER        wrong input or settings, or refused       no
    3      REJECTED    a gate or the data said no                no
    75     TEMPORARY   may succeed when tried again              yes
    76     PREEMPTED   told to stop, checkpoint saved            yes
    130    CANCELLED   a person stopped it                       no
    >=128  -           killed by the system (130 apart)          yes

75 is sysexits.h EX_TEMPFAIL; 128 + n is the shell's code for death by signal n.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    """Exit codes of every process of this product."""

    DONE = 0
    BUG = 1
    USER = 2
    REJECTED = 3
    TEMPORARY = 75
    PREEMPTED = 76
    CANCELLED = 130


def is_retryable(code: int) -> bool:
    """Whether a process that ended with `code` may be started again unchanged."""
    if code < 0:  # Popen's form of death by signal
        code = 128 - code
    return code in (Exit.TEMPORARY, Exit.PREEMPTED) or (code >= 128 and code != Exit.CANCELLED)


class TripodError(Exception):
    """A failure with a kind. The message is one line: what, what was got, what is allowed, what next."""

    code: Exit = Exit.BUG


class UserError(TripodError, ValueError):
    """Wrong input, settings or state that the user can put right."""

    code = Exit.USER


class RejectedError(TripodError):
    """A quality gate or a limit on the data said no."""

    code = Exit.REJECTED


class TemporaryError(TripodError):
    """The world failed (store away, port busy); the same call may succeed later."""

    code = Exit.TEMPORARY


class PreemptedError(TripodError):
    """Told to stop; the work so far is saved and the same call goes on from it."""

    code = Exit.PREEMPTED


class CancelledError(TripodError):
    """A person asked for the end."""

    code = Exit.CANCELLED


_KINDS: dict[int, type[TripodError]] = {
    kind.code: kind for kind in (UserError, RejectedError, TemporaryError, PreemptedError, CancelledError)
}


def error_of(code: int, message: str) -> TripodError:
    """The error that ends a process with `code`; a bug of ours for a code that no kind has."""
    return _KINDS.get(code, TripodError)(message)


OS_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
}
"""What the operating system refuses that is no bug of ours."""


def describe_os_error(error: OSError) -> tuple[str, int]:
    """One line and the exit code for what the operating system refused."""
    where = error.filename or "this machine"
    if error.errno == errno.ENOENT and not error.filename and _current_folder_is_gone():
        return "the current folder was removed; cd to one that is there and run the same command again", Exit.USER
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where}: no space left; free some, then run the same command again", Exit.TEMPORARY
    return f"{where}: {error.strerror}", Exit.USER


def _current_folder_is_gone() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def about_file(path: Path) -> Iterator[None]:
    """Let what the operating system refuses inside be about `path`: a write, unlike an open, names no file."""
    try:
        yield
    except OSError as e:
        raise OSError(e.errno, e.strerror, str(path)) from e
