"""One process of the gang: `python -m steps.train.worker JOB.json`, started by torchrun's agent (launch.py).

The first lines need no torch: from them on, a signal means "agree on a step, save, leave".
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO, cast

from steps.lib.deaf import Deaf
from steps.lib.errors import OS_ERRORS, Exit, TemporaryError, TripodError, describe_os_error
from steps.train.outcome import Mailbox, write_outcome


class StopFlag:
    """Set by SIGTERM or SIGINT, read by the loop."""

    def __init__(self) -> None:
        self.is_set = False

    def listen(self) -> None:
        """From now on signals set the flag."""
        signal.signal(signal.SIGTERM, self._set)
        signal.signal(signal.SIGINT, self._set)

    def _set(self, signum: int, frame: object) -> None:
        self.is_set = True


def main(job_file: Path) -> None:
    """Work as the rank that the environment names, and leave an outcome file. Does not return."""
    die_with_parent()
    sys.stderr = cast(TextIO, Deaf(sys.stderr))
    flag = StopFlag()
    flag.listen()
    try:
        code = _work(job_file, flag)
    except OSError as e:  # no room for the outcome: this is the last place to say why
        message, code = describe_os_error(e)
        print(f"error: rank {os.environ['RANK']}: {message}", file=sys.stderr)
    sys.stderr.flush()
    # At once: threads that wait for lost peers must not hold the process. Preempted is a success for
    # torchrun's agent, which would otherwise stop the ranks that are still leaving.
    os._exit(0 if code in (Exit.DONE, Exit.PREEMPTED) else code)


def _work(job_file: Path, flag: StopFlag) -> int:
    mailbox = Mailbox(job_file.parent)
    mailbox.announce(int(os.environ["LOCAL_RANK"]))
    flag.is_set = flag.is_set or mailbox.stop_was_asked()
    code, message, secondary = _guarded(job_file, flag)
    write_outcome(job_file.parent, int(os.environ["RANK"]), code, message, secondary=secondary)
    return code


def _guarded(job_file: Path, flag: StopFlag) -> tuple[int, str, bool]:
    """The boundary of this process: exit code, one line, and whether another rank is the cause."""
    try:
        from steps.train.work import work

        work(job_file, lambda: flag.is_set)
        return Exit.DONE, "", False
    except TripodError as e:
        return e.code, str(e), False
    except Exception as e:  # noqa: BLE001 - the boundary of this process, as steps.runner is of its own
        if isinstance(e, OSError) and e.errno in OS_ERRORS:
            message, code = describe_os_error(e)
            return code, f"rank {os.environ['RANK']}: {message}", False
        if _lost_peers(e):
            return TemporaryError.code, f"lost contact with the other ranks: {e}", True
        traceback.print_exc()
        return (
            Exit.BUG,
            f"rank {os.environ['RANK']}: {type(e).__name__}: {e}; this is a bug, its traceback is above",
            False,
        )


def _lost_peers(error: Exception) -> bool:
    """Whether a collective failed, which is what the ranks see that are not the cause."""
    text = str(error)
    return type(error).__name__.startswith("Dist") or "gloo" in text or "NCCL" in text


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the agent dies (Linux, prctl(2) PR_SET_PDEATHSIG)."""
    if sys.platform != "linux":
        return
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != int(os.environ["TRIPOD_AGENT_PID"]):  # it died before we asked
        os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
