"""Every step keeps the contract: run twice, on file:// and on S3, killed once, the records are the same."""

import ast
import inspect
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from steps import records
from steps.contract import Params, Result, Step, load_step, step_names
from steps.lib.store import Store, open_store
from tests.examples import seed_examples
from tests.store.servers import DROP, Answer, Request

CACHED = [name for name in step_names() if load_step(name).step.cached]


@pytest.mark.parametrize("name", step_names())
def test_has_the_five_parts(name):
    module = load_step(name)
    assert issubclass(module.Params, Params)
    assert issubclass(module.Result, Result)
    assert isinstance(module.step, Step)
    assert isinstance(module.EXAMPLE, module.Params)
    assert list(inspect.signature(module.run).parameters) == ["params", "ctx"]
    assert module.__doc__


@pytest.mark.parametrize("name", step_names())
def test_importing_the_contract_is_light(name):
    heavy = "torch pyarrow boto3 obstore numpy transformers tokenizers hera kubernetes"
    code = f"import sys, steps.{name}; print([m for m in {heavy.split()!r} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("name", step_names())
def test_steps_do_not_import_each_other(name):
    own = Path(load_step(name).__file__)
    files = own.parent.rglob("*.py") if own.name == "__init__.py" else [own]
    imported = {part for file in files for part in records.imports(ast.parse(file.read_text()))}
    others = {f"steps.{other}" for other in step_names() if other != name}
    assert not {module for module in imported for other in others if f"{module}.".startswith(f"{other}.")}


@pytest.fixture(scope="session")
def seeded(tmp_path_factory) -> Store:
    """A store with what the examples name."""
    store = open_store(f"file://{tmp_path_factory.mktemp('seeded')}")
    seed_examples(store)
    return store


@pytest.mark.parametrize("name", CACHED)
def test_example_twice_on_both_stores_and_killed(name, tmp_path, proxy, use, seeded):
    """Killed at one of its writes, drawn by a seed: before the store has it, or after, with no answer."""
    local, remote = f"file://{tmp_path}/store", use(proxy)
    for uri in (local, remote):
        for head in seeded.list(""):
            open_store(uri).put(head.key, seeded.get(head.key))
    outputs = tmp_path / "outputs"
    first = _finish(_start(name, local, outputs), outputs)
    again = _finish(_start(name, local, outputs), outputs)
    assert first[0] == again[0], "a second call gives the same result"
    assert (first[1], again[1]) == ("miss", "hit")

    seed = os.environ.get("TRIPOD_TEST_SEED", time.time_ns() % 10_000)
    draw = random.Random(f"{seed} {name}")
    objects = len(_keys(local) - {head.key for head in seeded.list("")})
    at, stored = draw.randint(1, objects), draw.random() < 0.5
    print(f"TRIPOD_TEST_SEED={seed}: {name} is killed at write {at} of {objects} or more, stored: {stored}")
    victim: Future[subprocess.Popen[str]] = Future()
    proxy.rule = _kill(victim, at, stored)
    victim.set_result(killed := _start(name, remote, outputs))
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    proxy.rule = lambda request, forward: forward()
    assert _finish(_start(name, remote, outputs), outputs)[0] == first[0], "the store and a kill make no difference"
    assert _recorded(local, name) == _recorded(remote, name) == first[0]


def _kill(victim: "Future[subprocess.Popen[str]]", at: int, stored: bool) -> Callable[..., Answer]:
    """A rule for the proxy: the victim dies at its write number `at`, which the store has then got, or has not."""
    writes = itertools.count(1)

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer:
        if request.method not in ("PUT", "POST") or next(writes) != at:
            return forward()
        if stored:
            forward()
        victim.result().kill()
        return DROP

    return rule


def _start(name: str, uri: str, outputs: Path) -> subprocess.Popen[str]:
    argv = [f"--{field}={_word(value)}" for field, value in load_step(name).EXAMPLE.model_dump(mode="json").items()]
    env = {**os.environ, "TRIPOD_STORE": uri, "TRIPOD_OUTPUTS": str(outputs), "TRIPOD_THREADS": "1"}
    command = [sys.executable, "-m", "steps", name, *argv]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)


def _finish(process: subprocess.Popen[str], outputs: Path) -> tuple[dict, str]:
    """The result, and hit or miss."""
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1]), (outputs / "_cache").read_text().partition(":")[0]


def _keys(uri: str) -> set[str]:
    return {head.key for head in open_store(uri).list("")}


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _recorded(uri: str, name: str) -> dict:
    store = open_store(uri)
    keys = [head.key for head in store.list(f"records/{name}") if head.key.endswith(".json")]
    assert len(keys) == 1
    return json.loads(store.get(keys[0]))["result"]
