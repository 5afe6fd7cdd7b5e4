"""The main job while parts of the site fail under it: one TrainJob each time, nothing lost, the right end."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.lib.store import Store, open_store
from tests.lab import cluster, install, launching, remains, storage
from tests.lab.cluster import kubectl
from tests.lab.conftest import until
from tests.lab.places import COMPUTE, GPU, Place
from tests.lab.processes import eventually, stop
from tests.lab.test_e2e import STEPS, Main, nodes

pytestmark = [
    pytest.mark.skipif("TRIPOD_GPU_KUBECONFIG" not in os.environ, reason="no lab: see make lab-up"),
    # compute's programs are started anew from here and outlive the test
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
TEAM = ["-n", launching.TEAM]


class Run:
    """One run that goes on by itself, and what can be seen of it on the clusters."""

    def __init__(self, main: Main, store: Store):
        self.main, self.store = main, store
        self.id = f"{main.name}-run"
        sets = [*main.sets, "serving.keep=false", "train.steps=1500", "train.checkpoint_every_steps=50"]
        sets += ["evaluate.gate.max_loss=6.5", "evaluate.gate.beats=nothing", "evaluate.gate.min_passing=0"]
        sets += ["evaluate.max_tokens=20000"]
        words = [word for value in sets for word in ("--set", value)]
        done = main.call("train", "--model", "tiny", "--run-id", self.id, "--detach", *words)
        assert done.returncode == 0, done.stderr

    def jobs(self) -> list[dict[str, Any]]:
        """Its TrainJobs."""
        text = kubectl(GPU, *TEAM, "get", "trainjobs", "-l", f"tripod/run={self.id}", "-o", "json")
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found

    def wait_for_checkpoint(self) -> str:
        """Until a checkpoint is committed. Returns the TrainJob's uid."""
        until(lambda: self._checkpoints(), "a checkpoint is committed", 300)
        [job] = self.jobs()
        return str(job["metadata"]["uid"])

    def _checkpoints(self) -> list[str]:
        return [head.key for head in self.store.list("checkpoints") if head.key.endswith("/manifest.json")]

    def end(self) -> str:
        """Follow it to its end; what was said. It must succeed."""
        done = self.main.call("runs", "status", self.id, "--follow")
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        ended = nodes(self.store, self.id)
        assert {name: ended[name]["phase"] for name in STEPS} == dict.fromkeys(STEPS, "Succeeded")
        # one whose record was there before its launcher came back is swept by the team's next launcher; it holds nothing
        assert all(condition(job, "Complete") for job in self.jobs())
        return done.stdout + done.stderr

    def gangs(self) -> set[str]:
        """Names of the TrainJobs whose pods have left logs."""
        names = {head.key.split("/")[3] for head in self.store.list(f"runs/{self.id}/logs")}
        return {name.split("-node-")[0] for name in names if "-node-" in name}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Run]:
    for name, value in storage.identity(launching.TEAM).items():
        monkeypatch.setenv(name, value)
    main = Main(tmp_path)
    yield Run(main, open_store(main.uri))
    main.call("runs", "cancel", f"{main.name}-run")


def pods(place: Place, *words: str) -> list[str]:
    return kubectl(place, "get", "pods", *words, "-o", "name").split()


def test_every_controller_restarts_and_the_launcher_pod_goes(run: Run) -> None:
    run.wait_for_checkpoint()
    for place, namespace in (
        (COMPUTE, "argo"),
        (GPU, "kueue-system"),
        (GPU, "jobset-system"),
        (GPU, "kubeflow-system"),
    ):
        kubectl(place, "-n", namespace, "delete", "pods", "--all", "--wait=false")
    [launcher] = [
        p
        for p in pods(
            COMPUTE, *TEAM, "-l", f"workflows.argoproj.io/workflow={run.id}", "--field-selector=status.phase=Running"
        )
    ]
    kubectl(COMPUTE, *TEAM, "delete", launcher, "--wait=false")
    for place in (COMPUTE, GPU):
        install.wait_for_controllers(place)
    run.end()
    [gang] = run.gangs()
    assert gang.endswith("-1"), "one attempt, one TrainJob"


def test_compute_is_down_until_the_training_has_ended(run: Run) -> None:
    uid = run.wait_for_checkpoint()
    power_off(COMPUTE)
    try:
        until(lambda: condition(run.jobs()[0], "Complete"), "the training ends without compute", 600)
        [job] = run.jobs()
        assert job["metadata"]["uid"] == uid, "nobody has touched it"
    finally:
        cluster.up(COMPUTE)
        cluster.wait_ready(COMPUTE)
        install.wait_for_controllers(COMPUTE)
    run.end()
    [gang] = run.gangs()
    assert gang.endswith("-1")
    assert nodes(run.store, run.id)["train"]["attempt"] >= 1, "its launcher had to be started anew"


def test_the_store_is_away_for_a_while(run: Run) -> None:
    run.wait_for_checkpoint()
    before = restarts(run)
    storage.down()
    time.sleep(60)
    storage.up()
    assert restarts(run) == before == 0, "the ranks have waited"
    run.end()
    [gang] = run.gangs()
    assert gang.endswith("-1")


def restarts(run: Run) -> int:
    """How often JobSet has restarted the gang."""
    [job] = run.jobs()
    jobset = json.loads(kubectl(GPU, *TEAM, "get", "jobset", job["metadata"]["name"], "-o", "json"))
    return int(jobset.get("status", {}).get("restarts") or 0)


def condition(thing: dict[str, Any], kind: str) -> bool:
    conditions = thing.get("status", {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def power_off(place: Place) -> None:
    """All processes of a cluster, those in its containers too."""
    for name in reversed(cluster.PROGRAMS):
        stop(place.folder, name)
    for pid in remains.processes(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not list(remains.processes(place)), 20)
