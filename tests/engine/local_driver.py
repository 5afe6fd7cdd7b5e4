"""Runs one workflow with the local engine, in a process where `import hera` fails.

python local_driver.py SCRATCH [GRACE_S] < document.json > result.json
"""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.modules["hera"] = None  # type: ignore[assignment]

from pipelines.engine.local import LocalEngine  # noqa: E402 - hera has to be gone before
from pipelines.engine.workflow import parse_workflow  # noqa: E402


def main() -> None:
    """Print the outcome as JSON; exit with its code."""
    try:
        import hera  # noqa: F401
    except ImportError:
        pass
    else:
        raise AssertionError("hera can be imported")
    engine = LocalEngine(
        parse_workflow(json.load(sys.stdin)), scratch=Path(sys.argv[1]), max_parallel=4, grace_s=float(sys.argv[2])
    )
    started = time.monotonic()
    outcome = engine.run()
    print(json.dumps(asdict(outcome) | {"wall_s": time.monotonic() - started}))
    sys.exit(outcome.exit_code)


if __name__ == "__main__":
    main()
