"""What the commands share. Imports nothing heavy: `--help` must answer at once."""

import gc
import os
import sys
from collections.abc import Callable


def guarded(call: Callable[[], int]) -> int:
    """Run a command; every failure becomes one line on stderr and a code of the exit table."""
    # pydantic looks through every installed distribution for plugins, 50 ms in an environment of this size
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.set_threshold(100_000)  # importing hera makes half a million objects that all stay: 0.13 s of collecting
    try:
        from steps.runner import guard
    except KeyboardInterrupt:  # nobody is there yet to say it in one line
        print("error: cancelled", file=sys.stderr)
        return 130

    return guard(call)
