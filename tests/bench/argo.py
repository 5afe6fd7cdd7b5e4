"""What our workflow costs on Argo: a chain of 10 steps as `train` runs it, and the same chain written by hand."""

import importlib
import io
import itertools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import steps
from pipelines import new_step
from pipelines.clusters import open_workflows
from pipelines.engine.argo.workflows import Workflows
from pipelines.engine.recorder import RunInfo
from pipelines.execute_argo import execute_on_argo
from pipelines.plan import make_plan
from pipelines.settings.load import Loaded, load, pods_store_uri
from pipelines.settings.recipe import Recipe
from pipelines.settings.site import Site
from pipelines.tasks import RUN_NAME, RUN_STATUS, Pipeline
from pipelines.view import PlainView
from steps import notify
from steps.lib import tree
from steps.lib.digest import sha256_hex
from steps.lib.folder import put_blob
from steps.lib.store import open_store
from tests.lab import launching, storage
from tests.lab.cluster import kubectl
from tests.lab.places import COMPUTE, ROOT
from tests.lab.processes import wait_for

ROUNDS = 3
NUM_STEPS = 10
_LOOK_EVERY_S = 1.0


def argo_overhead() -> list[float]:
    """Wall time of our chain over that of the one written by hand, on the lab that is up.

    Both: 10 trivial steps (`make step`), `python -m steps NAME` in the same image with the same sources, environment,
    resources and identity, each new to its store. Ours is timed from the plan to its last event: with records, outputs,
    retries and the exit handler (a pod more). The other from its creation until it has ended, looked at each second;
    it has neither outputs, nor retries, nor an exit handler.
    """
    os.environ.update(storage.identity(launching.TEAM))
    with tempfile.TemporaryDirectory() as folder:
        modules = _chain(Path(folder))
        packed = tree.pack(Path(folder))
        model, site = load("tiny", "lab", ["run.notify=true"])
        put_blob(open_store(pods_store_uri(site)), packed)
        with open_workflows(site.value) as workflows:

            def pipe() -> Pipeline:
                return _pipeline(modules, site, sha256_hex(packed))

            _wall(lambda: _by_hand(pipe(), workflows))  # pulls and compiles; not counted
            return [_round(pipe, model, site, workflows) for _ in range(ROUNDS)]


def edit_to_pod_s() -> list[float]:
    """From an edit of a step's source to the first pod of `train --detach` that runs it on the lab, seconds.

    A comment is added to a copy of the project; no image is built.
    """
    os.environ.update(storage.identity(launching.TEAM))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("pipelines", "steps", "config"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        return [_edit(Path(folder)) for _ in range(ROUNDS)]


def _edit(root: Path) -> float:
    run_id = f"edit-{secrets.token_hex(4)}"
    begin = time.perf_counter()
    with open(root / "steps/ingest.py", "a") as f:
        f.write(f"# {run_id}\n")
    words = [
        sys.executable,
        "-m",
        "pipelines.train",
        "--model",
        "tiny",
        "--site",
        "lab",
        "--run-id",
        run_id,
        "--detach",
    ]
    subprocess.run(words, cwd=root, check=True, capture_output=True)
    labels = f"workflows.argoproj.io/workflow={run_id}"
    running = ("get", "pods", "-l", labels, "--field-selector=status.phase=Running", "-o", "name")
    try:
        wait_for(lambda: kubectl(COMPUTE, "-n", launching.TEAM, *running), f"a pod of {run_id} runs", 300, every_s=0.2)
        return time.perf_counter() - begin
    finally:
        kubectl(COMPUTE, "-n", launching.TEAM, "delete", "workflow", run_id)


def _round(pipe: Callable[[], Pipeline], model: Loaded[Recipe], site: Loaded[Site], workflows: Workflows) -> float:
    ours = _wall(lambda: _ours(pipe(), model, site, workflows))
    by_hand = _wall(lambda: _by_hand(pipe(), workflows))
    print(f"  argo_overhead, seconds (ours, by hand): {ours:.1f}, {by_hand:.1f}", flush=True)
    return ours / by_hand


def _wall(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _chain(root: Path) -> list[ModuleType]:
    """A tree of sources with 10 steps more; they can be imported here too."""
    for path in (*tree.root().glob("steps/**/*.py"), *tree.root().glob("steps/**/*.json")):
        copy = root / path.relative_to(tree.root())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (root / "tests/steps").mkdir(parents=True)
    steps.__path__.append(str(root / "steps"))
    names = [f"chain_{number}" for number in range(NUM_STEPS)]
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        for name in names:
            new_step.create(name, root)
    finally:
        sys.stdout = stdout
    return [importlib.import_module(f"steps.{name}") for name in names]


def _pipeline(modules: Sequence[ModuleType], site: Loaded[Site], packed: str) -> Pipeline:
    run_id = f"chain-{secrets.token_hex(4)}"
    env = site.value.step_env(pods_store_uri(site), [1]) | {"TRIPOD_TREE": packed}
    with Pipeline(name="chain", run_id=run_id, site=site.value, env=env, labels={}) as pipe:
        tasks = [pipe.task(module, text=f"{run_id} a b c") for module in modules]  # a hit would run nothing
        for one, next_one in itertools.pairwise(tasks):
            one >> next_one
        pipe.on_exit(notify, run=RUN_NAME, status=RUN_STATUS, pipeline="chain", model="chain")
    return pipe


def _ours(pipe: Pipeline, model: Loaded[Recipe], site: Loaded[Site], workflows: Workflows) -> None:
    uri, run_id = pods_store_uri(site), str(pipe.workflow.name)
    store = open_store(uri)
    make_plan(pipe, model.value, run_id, store, uri)
    info = RunInfo(run_id=run_id, command=["bench"], started=time.time())
    document = yaml.safe_load(pipe.workflow.to_yaml())
    view = PlainView(stream=io.StringIO())
    outcome = execute_on_argo(document, workflows=workflows, store=store, info=info, view=view)
    assert outcome, run_id
    assert outcome.exit_code == 0, outcome.message
    assert [node.attempts for node in outcome.nodes.values()] == [1] * len(outcome.nodes), run_id


def _by_hand(pipe: Pipeline, workflows: Workflows) -> None:
    body = _stripped(yaml.safe_load(pipe.workflow.to_yaml()))
    name = body["metadata"]["name"]
    workflows.create(body)
    while not (ended := (workflows.get(name) or {}).get("status", {})).get("finishedAt"):
        time.sleep(_LOOK_EVERY_S)
    assert ended["phase"] == "Succeeded", json.dumps(ended)[:2000]


def _stripped(document: dict[str, Any]) -> dict[str, Any]:
    """The chain as somebody would write it who wants just these commands run in this order."""
    spec = document["spec"]
    spec.pop("onExit")
    spec["templates"] = [t for t in spec["templates"] if not t["name"].startswith("exit-")]
    for template in spec["templates"]:
        template.pop("outputs", None)
        template.pop("retryStrategy", None)
    return document
