"""`python -m steps NAME --field=value ...`: see steps/contract.py and steps/runner.py."""

import os
import sys

# pydantic looks through every installed distribution for plugins, 50 ms in an environment of this size
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

from steps.runner import main  # noqa: E402 - the line above must come first

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
