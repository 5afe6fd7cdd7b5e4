"""`make step NAME=x` makes a step that runs and a test that passes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.new_step import create
from steps.lib.errors import UserError

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what a new step needs around it."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "steps", tmp_path / "steps", ignore=ignore)
    (tmp_path / "tests" / "steps").mkdir(parents=True)
    for name in ("__init__.py", "steps/__init__.py", "steps/calling.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "tests" / "conftest.py").write_text(
        "import pytest\nfrom steps.lib.store import open_store\n\n\n"
        "@pytest.fixture\ndef store(tmp_path):\n    return open_store(f'file://{tmp_path}/store')\n"
    )
    return tmp_path


def test_it_runs_and_its_test_passes(tree, capsys):
    assert create("word_tally", tree) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["steps/word_tally.py", "tests/steps/test_word_tally.py"]
    env = {**os.environ, "TRIPOD_STORE": f"file://{tree}/data", "PYTHONPATH": str(tree)}
    step = [sys.executable, "-m", "steps", "word_tally", "--text=one two two"]
    done = subprocess.run(step, cwd=tree, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["num_words"] == 3
    test = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/steps/test_word_tally.py"]
    done = subprocess.run(test, cwd=tree, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("name", ["", "Word", "1st", "a-b", "x" * 31])
def test_a_name_that_is_none_is_refused(name, tree):
    with pytest.raises(UserError, match="allowed are a-z, 0-9 and _"):
        create(name, tree)


def test_a_name_that_is_taken_is_refused(tree):
    with pytest.raises(UserError, match="'ingest', which is there already"):
        create("ingest", tree)
    assert not (tree / "tests/steps/test_ingest.py").exists()
