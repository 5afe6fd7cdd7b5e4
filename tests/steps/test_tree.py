"""The researcher's tree: the same bytes for the same files, and the process that runs is the tree's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steps.lib import tree
from steps.lib.errors import UserError
from steps.lib.folder import put_blob

ROOT = Path(__file__).resolve().parents[2]
STEP = '''"""A step that only this tree has."""

from datetime import timedelta

from steps.contract import Context, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """Nothing."""


class Result(BaseResult):
    """Where it ran."""

    file: str


step = Step(image="data", timeout=timedelta(minutes=1), cached=False)


def run(params: Params, ctx: Context) -> Result:
    """Tell."""
    return Result(file=__file__)
'''


def copy(folder: Path) -> Path:
    """A tree with one more step, under other times."""
    (folder / "steps").mkdir(parents=True)
    for path in (ROOT / "steps").rglob("*.py"):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    (folder / "steps/where.py").write_text(STEP)
    return folder


def test_the_same_files_give_the_same_bytes_and_any_edit_others(tmp_path):
    one, two = copy(tmp_path / "one"), copy(tmp_path / "two")
    os.utime(two / "steps/where.py", (1, 1))
    (two / "steps/__pycache__").mkdir()
    (two / "steps/__pycache__/where.pyc").write_bytes(b"x")
    assert tree.pack(one) == tree.pack(two)
    (two / "steps/where.py").write_text(STEP + "\n")
    assert tree.pack(one) != tree.pack(two)


def test_a_step_runs_from_the_tree(tmp_path, store):
    packed = put_blob(store, tree.pack(copy(tmp_path / "edited")))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {"TRIPOD_STORE": store.uri, "TRIPOD_TREE": packed.sha256, "TRIPOD_SCRATCH": str(scratch)}
    for _ in range(2):  # unpacked, and found unpacked
        done = subprocess.run(
            [sys.executable, "-m", "steps", "where"],
            cwd=ROOT,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == f'{{"file":"{scratch}/tripod-tree-{packed.sha256[:16]}/steps/where.py"}}\n'
    assert [path.name for path in scratch.iterdir()] == [f"tripod-tree-{packed.sha256[:16]}"]


def test_a_tree_that_is_missing_or_damaged_is_refused(tmp_path, store):
    with pytest.raises(UserError, match=r"TRIPOD_TREE: blobs/sha256/0000.* is not in file://"):
        tree.fetch(store.uri, "0" * 64, tmp_path)
    store.put(f"blobs/sha256/{'1' * 64}", b"other")
    with pytest.raises(UserError, match="holds other bytes than its name says"):
        tree.fetch(store.uri, "1" * 64, tmp_path)
    with pytest.raises(UserError, match="no sources there"):
        tree.pack(tmp_path)
    assert not list(tmp_path.glob("tripod-tree*"))
