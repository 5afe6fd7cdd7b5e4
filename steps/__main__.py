"""`python -m steps NAME --field=value ...`: see steps/contract.py and steps/runner.py."""

import gc
import os
import sys

# pydantic looks through every installed distribution for plugins, 50 ms in an environment of this size
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
gc.set_threshold(100_000)  # what imports make stays; looking through it again and again costs 10 ms a start

if __name__ == "__main__":
    try:
        from steps.runner import guard, main
    except KeyboardInterrupt:  # nobody is there yet to say it in one line
        print("error: cancelled", file=sys.stderr)
        sys.exit(130)

    if os.environ.get("TRIPOD_TREE"):
        from steps.lib import tree

        if code := guard(lambda: tree.start(sys.argv[1:], os.environ)):
            sys.exit(code)
    sys.exit(main(sys.argv[1:]))
