"""README is true: its tree is the tree, its commands are commands."""

import re
import shlex
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = sorted({line.split("#")[0].strip() for line in README.splitlines() if line.startswith("    ")})


def test_the_tree_names_every_file():
    tracked = subprocess.check_output(
        ["git", "ls-files", "-co", "--exclude-standard", "config", "pipelines", "steps"], cwd=ROOT, text=True
    )
    files = {path for path in tracked.split() if (ROOT / path).is_file() and (ROOT / path).stat().st_size}
    assert _tree() == files


def test_the_exit_table_is_the_exit_table():
    from steps.lib.errors import Exit

    in_readme = {int(code) for code in re.findall(r"^\| (\d+) \|", README, re.M)}
    assert in_readme == set(Exit)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python -m pipelines.")])
def test_the_command_line_is_taken(command):
    words = shlex.split(command)
    parser = import_module(words[2]).parser()
    parser.parse_args(words[3:])  # exits with 2, which fails the test, when it is not taken


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("make ")])
def test_the_target_is_there(command):
    done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_files_that_commands_name_are_there():
    named = {word for command in COMMANDS if command.startswith("cp ") for word in shlex.split(command)[1:2]}
    assert named
    assert all((ROOT / name).is_file() for name in named)


def _tree() -> set[str]:
    """Paths of the files below config/, pipelines/ and steps/ in README's tree, by indentation."""
    block = README.split("## The tree")[1].split("```")[1]
    files, folders = set(), []
    for line in block.strip("\n").splitlines():
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders = [*folders[:depth], name]
        if not name.endswith("/"):
            files.add("".join(folders))
    return files
