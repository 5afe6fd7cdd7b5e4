"""The whole pipeline by its command line, small: once for real, then from records, then with an edited step.

Everything is real but the server: tests/after/stub_server.py answers in vLLM's place.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples import example_text
from tests.test_readme import COMMANDS, ROOT

CACHED = ("ingest", "tokenizer", "tokenize", "publish-dataset", "train", "evaluate", "export")
STUB = ROOT / "tests/after/stub_server.py"
RECIPE = """
description = "Seconds on two cores"
[data]
source = "TEXT"
include = ["*.txt"]
holdout_fraction = 0.2
[tokenizer]
vocab_size = 300
[model]
num_layers = 1
hidden_size = 64
intermediate_size = 64
num_heads = 2
num_kv_heads = 1
sequence_length = 32
vocab_size = 300
[train]
steps = 6
global_batch = 4
micro_batch = 2
learning_rate = 1e-2
warmup_steps = 1
checkpoint_every_steps = 3
[evaluate.gate]
max_loss = 6.0
[serving]
max_model_len = 32
prompt = "The "
max_tokens = 4
"""


class Machine:
    """A machine of its own: a folder to work in, a store, a state folder, the stub in vLLM's place."""

    def __init__(self, root: Path):
        self.folder = root
        self.tree = ROOT
        self.starts = root / "starts"
        (root / "text").mkdir()
        for number in range(60):
            (root / f"text/{number:02d}.txt").write_text(example_text(number))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command; what it says is in the failure when its code is not 0."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TRIPOD_", "PYTEST_"))}
        env |= {
            "PYTHONPATH": str(self.tree),
            "TRIPOD_STORE": f"file://{self.folder}/store",
            "TRIPOD_STATE": str(self.folder / "state"),
            "TRIPOD_VLLM_COMMAND": shlex.join([sys.executable, str(STUB), "--starts", str(self.starts)]),
        }
        words = (sys.executable, *words[1:]) if words[0] == "python" else words
        done = subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr + done.stdout
        return done

    def train(self, run_id: str, *more: str) -> dict[str, Any]:
        """Run the pipeline. Returns the run's nodes by name, as `runs status --json` has them."""
        self.run("python", "-m", "pipelines.train", "--model", "mini.toml", "--run-id", run_id, *more)
        state = json.loads(self.run("python", "-m", "pipelines.runs", "status", run_id, "--json").stdout)
        return state["nodes"]

    @property
    def num_starts(self) -> int:
        return len(self.starts.read_text().splitlines())

    def edit(self, file: str, old: str, new: str) -> None:
        """Change one line of the source, in a copy of the tree."""
        if self.tree == ROOT:
            self.tree = self.folder / "tree"
            for name in ("config", "pipelines", "steps"):
                shutil.copytree(ROOT / name, self.tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        text = (self.tree / file).read_text()
        assert text.count(old) == 1
        (self.tree / file).write_text(text.replace(old, new))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def cache(nodes: dict[str, Any]) -> dict[str, str]:
    """hit or miss for each step that keeps records; of a fan-out, of all its items together."""
    verdicts = {}
    for task in CACHED:
        items = [node for node in nodes.values() if node["parent"] == task] or [nodes[task]]
        (verdicts[task],) = {item["cache"].split(":")[0] for item in items}
    return verdicts


def test_what_ran_is_not_run_again_and_an_edited_step_is(machine):
    (machine.folder / "mini.toml").write_text(RECIPE.replace("TEXT", str(machine.folder / "text")))
    first = machine.train("first")
    assert cache(first) == dict.fromkeys(CACHED, "miss")
    assert first["train"]["outputs"]["step"] == "6"
    assert first["deploy"]["outputs"]["completion"] == " after 'The '"  # the stub's words
    assert (machine.num_starts, first["deploy"]["outputs"]["endpoint"]) == (1, "")

    kept = machine.train("kept", "--set", "serving.keep=true")
    try:
        assert cache(kept) == dict.fromkeys(CACHED, "hit")
        assert machine.num_starts == 2
        adopted = machine.train("adopted", "--set", "serving.keep=true")
        assert machine.num_starts == 2
        assert adopted["deploy"]["outputs"]["endpoint"] == kept["deploy"]["outputs"]["endpoint"] != ""
        assert adopted["register"]["outputs"]["model"] == first["register"]["outputs"]["model"]
        assert kept["deploy"]["outputs"]["endpoint"] in machine.run("python", "-m", "pipelines.deploy", "status").stdout
    finally:
        machine.run("python", "-m", "pipelines.deploy", "stop", "mini")

    # the same result from other source: what depends on it is found by that result
    machine.edit(
        "steps/tokenizer.py", "    from steps.lib.folder import load\n", "    from steps.lib.folder import load\n\n"
    )
    assert cache(machine.train("reworded")) == {**dict.fromkeys(CACHED, "hit"), "tokenizer": "miss"}
    # another result: everything after it runs, nothing before it
    machine.edit("steps/tokenizer.py", "train(texts, params.vocab_size)", "train(texts, params.vocab_size - 1)")
    assert cache(machine.train("changed")) == {**dict.fromkeys(CACHED, "miss"), "ingest": "hit"}
    # a step in the middle whose result stays
    machine.edit("steps/evaluate/__init__.py", '"""A checkpoint', '"""One checkpoint')
    assert cache(machine.train("evaluated")) == {**dict.fromkeys(CACHED, "hit"), "evaluate": "miss"}


def test_the_readmes_commands_for_ones_own_text_serve_a_model(machine):
    """As they stand in README, but for the folder's name and with fewer steps than a good model needs."""
    fewer = "--set train.steps=60 --set train.warmup_steps=10 --set evaluate.gate.beats=nothing"
    own = [c.replace("/path/to/text", str(machine.folder / "text")) for c in COMMANDS if "mine.toml" in c]
    copy, run, dry_run = sorted(own, key=lambda c: (not c.startswith("cp "), len(c)))
    machine.run(*shlex.split(copy.replace("config/", f"{ROOT}/config/")))
    shown = machine.run(*shlex.split(f"{dry_run} {fewer}"))
    assert str(machine.folder / "text") in shown.stdout
    assert "ingest" in shown.stderr
    done = machine.run(*shlex.split(f"{run} {fewer}"))
    assert "completion   after 'The '" in done.stdout
