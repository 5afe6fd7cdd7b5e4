"""The one wait loop: a deadline, a done and a failed condition, and the last state seen."""

import time
from collections.abc import Callable

from steps.lib.errors import TemporaryError


def wait(
    done: Callable[[], bool],
    *,
    what: str,
    timeout_s: float,
    state: Callable[[], str] = str,
    check: Callable[[], None] = lambda: None,
    say: Callable[[str], None] = lambda line: None,
    every_s: float = 0.1,
    say_every_s: float = 10.0,
) -> float:
    """Wait until `done()`.

    Args:
        what: what is awaited, for messages: `server m is healthy`.
        state: what is to be seen now, in one line.
        check: raises when waiting on is useless.
        say: told the state every `say_every_s` seconds.

    Returns:
        Seconds waited.

    Raises:
        TemporaryError: the time is over; the message has the last state.
    """
    start = time.monotonic()
    said = start
    while not done():
        check()
        now = time.monotonic()
        if now - start > timeout_s:
            seen = state()
            raise TemporaryError(f"{what}: not within {timeout_s:.0f} s" + (f"; last seen: {seen}" if seen else ""))
        if now - said >= say_every_s:
            said = now
            say(f"{what}: waiting, {now - start:.0f} of at most {timeout_s:.0f} s; {state()}")
        time.sleep(every_s)
    return time.monotonic() - start
