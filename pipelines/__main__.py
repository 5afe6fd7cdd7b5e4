"""`python -m pipelines`: which commands there are."""

import ast
import sys
from pathlib import Path

NAMES = ("train", "runs", "deploy", "retrain", "publish", "config", "new_step")


def main() -> int:
    """Print them, each with its one line. Returns 2: nothing was asked for."""
    for name in NAMES:
        about = ast.get_docstring(ast.parse(Path(__file__).with_name(f"{name}.py").read_text())) or ""
        print(f"python -m pipelines.{name:<9} {about.split(': ', 1)[-1].splitlines()[0]}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
