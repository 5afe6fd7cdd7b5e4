"""How long people wait for the commands themselves: whole processes, wall time, warm file cache."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipelines.new_step import create

ROUNDS = 9
ROOT = Path(__file__).resolve().parent.parent.parent


def help_s() -> list[float]:
    """`python -m pipelines.train --help`, seconds."""
    return _times([sys.executable, "-m", "pipelines.train", "--help"], ROOT)


def dry_run_s() -> list[float]:
    """`python -m pipelines.train --model tiny --site local --dry-run` with an empty store, seconds."""
    return _times([sys.executable, "-m", "pipelines.train", "--model", "tiny", "--site", "local", "--dry-run"], ROOT)


def trivial_step_s() -> list[float]:
    """A call of the step that `make step` makes, first of its kind in its store: run and recorded, seconds."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shutil.copytree(ROOT / "steps", root / "steps", ignore=shutil.ignore_patterns("__pycache__"))
        (root / "tests" / "steps").mkdir(parents=True)
        create("word_count", root)
        return _times([sys.executable, "-m", "steps", "word_count", "--text=a b c"], root)


def _times(argv: list[str], folder: Path) -> list[float]:
    """Wall seconds of ROUNDS calls; the one before them, which compiles and warms the file cache, is not counted."""
    times = []
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as stores:
        for number in range(ROUNDS + 1):
            begin = time.perf_counter()
            subprocess.run(
                argv,
                cwd=folder,
                env={**env, "TRIPOD_STORE": f"file://{stores}/{number}"},
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            times.append(time.perf_counter() - begin)
    return times[1:]
