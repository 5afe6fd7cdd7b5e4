"""The main job on two real clusters: raw text to a vLLM that answers from a pod of the GPU cluster, by one command."""

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.deploy.objects import PORT
from steps.lib import checkpoint
from steps.lib.completions import Client
from steps.lib.kube import Object, open_cluster
from steps.lib.store import Store, open_store
from tests.lab import launching
from tests.lab.cluster import kubectl
from tests.lab.conftest import until
from tests.lab.places import COMPUTE, GPU, ROOT
from tests.lab.processes import CommandError
from tests.lab.storage import identity
from tests.pipelines.other_team import hera_dag, plain_dag

pytestmark = pytest.mark.skipif("TRIPOD_GPU_KUBECONFIG" not in os.environ, reason="no lab: see make lab-up")
STEPS = [
    "ingest",
    "tokenizer",
    "tokenize",
    "publish-dataset",
    "train",
    "evaluate",
    "export",
    "register",
    "deploy",
]
# what takes the demo minutes on two free cores is cut down; the gate is what 200 steps reach
SMALL = ["train.steps=200", "train.checkpoint_every_steps=100", "evaluate.gate.max_loss=6.5"]
SMALL += ["evaluate.gate.beats=nothing", "evaluate.gate.min_passing=0", "evaluate.max_tokens=20000"]


class Main:
    """`python -m pipelines.train --site lab`, with a store prefix and a served name of its own.

    Args:
        folder: gets the site's file.
    """

    def __init__(self, folder: Path) -> None:
        self.name = f"e2e-{uuid.uuid4().hex[:6]}"
        self.uri = f"s3://{launching.TEAM}-store/{self.name}"
        self.sets = ["scale.nodes=[2]", "serving.keep=true", f"serving.name={self.name}"]
        lab = (ROOT / "config/sites/lab.toml").read_text()
        self.site = folder / "lab.toml"
        self.site.write_text(lab.replace(f'uri = "s3://{launching.TEAM}-store"', f'uri = "{self.uri}"'))

    def train(self, run_id: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        words = ["train", "--model", "tiny", "--run-id", run_id]
        for value in [*self.sets, *SMALL]:
            words += ["--set", value]
        return self.call(*words)

    def call(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        """One of the product's commands, at the site."""
        argv = [sys.executable, "-m", f"pipelines.{command}", *words, "--site", str(self.site)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Main]:
    main = Main(tmp_path_factory.mktemp("site"))
    yield main
    main.call("deploy", "stop", main.name)


@pytest.fixture(scope="module")
def store(main: Main) -> Iterator[Store]:
    """Where the run writes."""
    before = {name: os.environ.get(name) for name in identity(launching.TEAM)}
    os.environ.update(identity(launching.TEAM))
    yield open_store(main.uri)
    for name, value in before.items():
        os.environ.pop(name)
        if value is not None:
            os.environ[name] = value


def nodes(store: Store, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.get(f"runs/{run_id}/status.json"))["nodes"]
    return found


def ask(main: Main) -> str:
    """What users get from the Service."""
    with open_cluster("gpu", kubeconfig=str(GPU.kubeconfig), retry_s=60) as cluster:

        def send(path: str, body: Object | None, timeout_s: float) -> tuple[int, bytes]:
            return cluster.ask_service(launching.TEAM, f"serve-{main.name}", PORT, path, body, timeout_s)

        return Client("the gpu cluster", send).complete(main.name, "def main(", max_tokens=16).text


def test_text_becomes_a_model_that_answers_from_a_pod(main: Main, store: Store) -> None:
    run_id = f"{main.name}-first"
    done = main.train(run_id)
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"http://serve-{main.name}.{launching.TEAM}.svc:{PORT}/v1" in done.stdout
    ended = nodes(store, run_id)
    assert {name: ended[name]["phase"] for name in STEPS} == dict.fromkeys(STEPS, "Succeeded")
    last = ended["train"]["outputs"]["checkpoint"]
    meta = checkpoint.read_meta(store, last)
    assert (meta.step, meta.world_size) == (200, 2)
    logs = {head.key.split("/")[3] for head in store.list(f"runs/{run_id}/logs")}
    assert len([name for name in logs if "-node-0-" in name]) == 2, "a log of each training pod"
    pods = json.loads(kubectl(GPU, "-n", launching.TEAM, "get", "pods", "-o", "json"))["items"]
    [server] = [p for p in pods if p["metadata"]["name"].startswith(f"serve-{main.name}-")]
    assert server["spec"]["nodeName"] == GPU.node
    assert ask(main)
    assert not json.loads(
        kubectl(GPU, "-n", launching.TEAM, "get", "trainjobs", "-l", f"tripod/run={run_id}", "-o", "json")
    )["items"]


def test_the_same_command_again_takes_all_from_records_and_adopts_the_server(main: Main, store: Store) -> None:
    run_id = f"{main.name}-second"
    done = main.train(run_id)
    assert done.returncode == 0, done.stderr[-4000:]
    ended = nodes(store, run_id)
    live = ("register", "deploy", "tokenize")  # the last fans out, and its items say so
    assert {ended[name]["cache"].partition(":")[0] for name in STEPS if name not in live} == {"hit"}
    assert json.loads(ended["deploy"]["outputs"]["adopted"]) is True
    assert (
        kubectl(COMPUTE, "-n", launching.TEAM, "get", "workflow", run_id, "-o", "jsonpath={.status.phase}")
        == "Succeeded"
    )


def test_a_tick_of_the_clock_with_no_new_data_trains_nothing(main: Main, store: Store) -> None:
    words = ["--model", "tiny", *(word for value in [*main.sets, *SMALL] for word in ("--set", value))]
    done = main.call("retrain", "install", *words, "--schedule", "* * * * *", "--zone", "Europe/Berlin")
    assert done.returncode == 0, done.stderr
    try:
        until(ticks, "the clock starts a workflow", 130)
        assert main.call("retrain", "suspend", *words).returncode == 0
        until(lambda: ticks()[-1].get("status", {}).get("finishedAt"), "it ends", 300)
        tick = ticks()[-1]
        assert main.call("retrain", "show", *words).returncode == 0
    finally:  # what has ended goes with its schedule
        assert main.call("retrain", "remove", *words).returncode == 0
    assert tick["status"]["phase"] == "Succeeded", tick["status"].get("message")
    [train] = [n for n in tick["status"]["nodes"].values() if n.get("displayName") == "train(0)"]
    told = {p["name"]: p.get("value") for p in train["outputs"]["parameters"]}
    assert told["_cache"].startswith("hit: recorded by")
    shown = main.call("runs", "list")
    assert re.search(rf"^{tick['metadata']['name']} ", shown.stdout, re.MULTILINE), "its record was begun by `show`"


def ticks() -> list[dict[str, Any]]:
    """Workflows that the schedule has started, the newest last."""
    labels = "workflows.argoproj.io/cron-workflow=retrain-tiny"
    found: list[dict[str, Any]] = json.loads(
        kubectl(COMPUTE, "-n", launching.TEAM, "get", "workflows", "-l", labels, "-o", "json")
    )["items"]
    return sorted(found, key=lambda workflow: workflow["metadata"]["creationTimestamp"])


def test_published_steps_run_in_another_dag_and_cannot_be_changed(main: Main, store: Store) -> None:
    done = main.call("publish")
    assert done.returncode == 0, done.stderr
    names = {m[2]: m[1] for m in re.finditer(r"name: (\S+), template: ([\w-]+)}", done.stdout)}
    team = ["-n", launching.TEAM]
    for text in (plain_dag(names), hera_dag(names)):
        made = kubectl(COMPUTE, *team, "create", "-f", "-", "-o", "name", stdin=text).strip()

        def ended(made: str = made) -> str:
            return kubectl(COMPUTE, *team, "get", made, "-o", "jsonpath={.status.phase} {.status.finishedAt}")

        until(lambda: ended().partition(" ")[2], f"{made} ends", 240)
        assert ended().startswith("Succeeded"), kubectl(COMPUTE, *team, "get", made, "-o", "jsonpath={.status.message}")
        kubectl(COMPUTE, *team, "delete", made)
    again = main.call("publish")
    assert again.stdout == done.stdout.replace("new  ", "there  ")
    patch = json.dumps([{"op": "replace", "path": "/spec/templates/0/activeDeadlineSeconds", "value": 1}])
    with pytest.raises(CommandError, match="a published version never changes its meaning"):
        kubectl(COMPUTE, *team, "patch", "workflowtemplate", names["ingest"], "--type=json", "-p", patch)
    kubectl(COMPUTE, *team, "delete", "workflowtemplate", "-l", "tripod/step")


def test_what_serves_is_shown_and_ended(main: Main, store: Store) -> None:
    shown = main.call("deploy", "status", "--json")
    assert shown.returncode == 0, shown.stderr
    assert [row["healthy"] for row in json.loads(shown.stdout) if row["name"] == main.name] == [True]
    stopped = main.call("deploy", "stop", main.name)
    assert stopped.returncode == 0, stopped.stderr
    left = json.loads(kubectl(GPU, "-n", launching.TEAM, "get", "deployments,services", "-o", "json"))["items"]
    assert not [thing for thing in left if main.name in thing["metadata"]["name"]]
