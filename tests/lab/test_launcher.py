"""The launcher on real clusters: team-a's token, real admission, real pods that train with gloo and write to S3.

Needs the lab (`make lab-up`) and, for trainings, its image of the train step.
"""

import dataclasses
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.lib.errors import CancelledError, Exit, UserError
from steps.lib.gpu_cluster import open_gpu
from steps.lib.kube.kinds import TRAINJOB
from steps.lib.store import Store, open_store
from steps.lib.trainjob import launcher
from steps.lib.trainjob.build import train_spec
from steps.lib.trainjob.cancel import ask_cancel, left_over, withdraw_cancel
from steps.lib.trainjob.place import read_place
from steps.lib.trainjob.training import Patience, Training
from steps.train import Params
from tests.lab import images, launching, step_images
from tests.lab.cluster import kubectl
from tests.lab.fakes import NOT_READY
from tests.lab.places import GPU, S3_ENDPOINT
from tests.lab.status import is_up
from tests.lab.storage import identity
from tests.train.trainings import Command, newest_step, publish_dataset, tiny, trajectory

pytestmark = pytest.mark.skipif("TRIPOD_GPU_KUBECONFIG" not in os.environ, reason="no lab: see make lab-up")
STEPS, EVERY = 1200, 50
NO_IMAGE = "registry.lab.internal/tripod/train@sha256:" + "0" * 64


@pytest.fixture(scope="module")
def image() -> str:
    """The train step's image on gpu, by digest."""
    archive = step_images.built("train")
    if archive is None or not is_up(GPU):
        pytest.skip("the lab has no train image; run `make lab-build lab-up`")
    return images.load_by_digest(GPU, archive, "train")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty prefix in team-a's bucket, with a dataset; the environment reaches it."""
    for name, value in identity(launching.TEAM).items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{launching.TEAM}-store/launcher-{uuid.uuid4().hex[:8]}")
    publish_dataset(store)
    return store


@pytest.fixture
def wire() -> Iterator[launching.Wire]:
    """From here to gpu's API server."""
    wire = launching.Wire()
    yield wire
    wire.close()


Launch = Callable[..., Command]


@pytest.fixture
def launch(store: Store, image: str, wire: launching.Wire, tmp_path: Path) -> Iterator[Launch]:
    """launch(params, run_id) -> the launcher, started as a process."""
    reach = {"TRIPOD_GPU_KUBECONFIG": str(launching.kubeconfig(tmp_path, wire.port))}
    runs = set()

    def launch(params: Params, run_id: str, **settings: str) -> Command:
        runs.add(run_id)
        env = launching.place(image) | reach | {"TRIPOD_RUN_ID": run_id, "TRIPOD_THREADS": "1"} | settings
        return Command(store.uri, params, tmp_path, nproc=1, env=env)

    yield launch
    for run in runs:
        kubectl(GPU, "-n", launching.TEAM, "delete", "trainjob", "-l", f"tripod/run={run}", "--timeout=90s")


def jobs(run_id: str) -> list[dict[str, Any]]:
    text = kubectl(GPU, "-n", launching.TEAM, "get", "trainjob", "-l", f"tripod/run={run_id}", "-o", "json")
    return list(json.loads(text)["items"])


def pods(job: str) -> list[str]:
    """Names of a TrainJob's pods, by index."""
    labels = f"jobset.sigs.k8s.io/jobset-name={job}"
    words = ("get", "pods", "-l", labels, "--sort-by=.metadata.labels.batch\\.kubernetes\\.io/job-completion-index")
    return kubectl(GPU, "-n", launching.TEAM, *words, "-o", "name").split()


def active(run_id: str, on: bool) -> None:
    """Evict a run's Workload, or let it be admitted again: what a preemption does."""
    (job,) = jobs(run_id)
    label = f"kueue.x-k8s.io/job-uid={job['metadata']['uid']}"
    patch = json.dumps({"spec": {"active": on}})
    name = kubectl(GPU, "-n", launching.TEAM, "get", "workload", "-l", label, "-o", "name").strip()
    kubectl(GPU, "-n", launching.TEAM, "patch", name, "--type=merge", "-p", patch)


def until(condition: Callable[[], bool], command: Command, seconds: float = 240) -> None:
    """Until the condition holds; the launcher must still run."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert command.process.poll() is None, command.said()
        assert time.monotonic() < deadline, command.said()
        time.sleep(0.5)


def test_a_training_survives_whatever_befalls_it(
    store: Store, launch: Launch, wire: launching.Wire, tmp_path: Path
) -> None:
    params = tiny(steps=STEPS, checkpoint_every_steps=EVERY)
    first = launch(params, "faults")
    until(lambda: newest_step(store.uri) >= EVERY, first)
    first.process.send_signal(signal.SIGTERM)
    assert first.end()[1] == Exit.TEMPORARY, first.said()
    (job,) = jobs("faults")

    command = launch(params, "faults")
    until(lambda: "going on with TrainJob" in command.said(), command)
    name = job["metadata"]["name"]
    before = newest_step(store.uri)
    kubectl(GPU, "-n", launching.TEAM, "delete", pods(name)[1], "--grace-period=0", "--force", "--wait=false")
    until(lambda: newest_step(store.uri) > before, command)

    active("faults", on=False)
    until(lambda: "gpu: Stuck: its Workload is deactivated" in command.said(), command)
    until(lambda: newest_step(store.uri) % EVERY > 0, command)  # saved where it was evicted, not at a multiple
    active("faults", on=True)
    before = newest_step(store.uri)
    until(lambda: newest_step(store.uri) > before, command)

    wire.cut()
    until(lambda: "looking again for up to" in command.said(), command)
    time.sleep(60)
    wire.mend()
    out, code = command.end(timeout_s=600)
    assert code == 0, command.said()
    assert json.loads(out.splitlines()[-1])["step"] == STEPS
    assert jobs("faults") == []
    assert command.said().count("progress step=") > 10, "node 0's lines are repeated"
    logs = {head.key.split("/")[3] for head in store.list("runs/faults/logs")}
    assert {log.split("-node-0-")[1][0] for log in logs} == {"0", "1"}, "both pods' logs are kept"

    quiet = open_store(f"file://{tmp_path}/quiet")
    publish_dataset(quiet)
    assert Command(quiet.uri, params, tmp_path, nproc=2).end(timeout_s=600)[1] == 0
    assert trajectory(store) == trajectory(quiet), "every step once, with the losses of an undisturbed training"


def test_a_cancel_saves_and_removes(store: Store, launch: Launch) -> None:
    command = launch(tiny(steps=1_000_000, checkpoint_every_steps=1_000_000), "cancelled")
    until(lambda: "progress step=" in command.said(), command)
    ask_cancel(store, "cancelled")
    assert command.end()[1] == Exit.CANCELLED, command.said()
    assert newest_step(store.uri) > 0
    assert jobs("cancelled") == []


def test_a_higher_priority_takes_the_gpus_and_gives_them_back(
    store: Store, launch: Launch, make: Callable[..., Training], tmp_path: Path
) -> None:
    params = tiny(steps=200, checkpoint_every_steps=100)
    command = launch(params, "preempted", TRIPOD_GPU_PRIORITY="low")
    until(lambda: "progress step=" in command.said(), command)
    said: list[str] = []
    urgent = make(said=said, queue="real", nodes=3, priority="normal")
    other = threading.Thread(target=cancelled, args=(urgent,))
    other.start()
    until(lambda: "gpu: Queued: " in command.said() and "after eviction (Preempted)" in command.said(), command)
    saved = newest_step(store.uri)
    assert 0 < saved < 200
    until(lambda: any("ErrImagePull" in line or "ImagePullBackOff" in line for line in said), command)
    ask_cancel(urgent.store, "placed")
    other.join(120)
    code = command.end(timeout_s=400)[1]
    assert code == 0, command.said()
    (job,) = {head.key.split("/")[3].split("-node-")[0] for head in store.list("runs/preempted/logs")}
    assert job.endswith("-1"), "one attempt: an eviction is none"
    quiet = open_store(f"file://{tmp_path}/quiet")
    publish_dataset(quiet)
    assert Command(quiet.uri, params, tmp_path, nproc=2).end(timeout_s=600)[1] == 0
    assert trajectory(store) == trajectory(quiet)


def test_a_training_process_that_is_killed_costs_a_restart(store: Store, launch: Launch) -> None:
    command = launch(tiny(steps=200, checkpoint_every_steps=50), "killed")
    until(lambda: newest_step(store.uri) >= 50, command)
    (job,) = jobs("killed")
    name = pods(job["metadata"]["name"])[0]
    kill = "import os, signal; [os.kill(int(p), signal.SIGKILL) for p in os.listdir('/proc') if p.isdigit() and int(p) > 1 and int(p) != os.getpid()]"
    kubectl(GPU, "-n", launching.TEAM, "exec", name, "--", "python", "-c", kill)
    out, code = command.end(timeout_s=500)
    assert code == 0, command.said()
    assert json.loads(out.splitlines()[-1])["step"] == 200
    logs = {head.key.split("/")[3] for head in store.list("runs/killed/logs")}
    assert len(logs) == 4, "two gangs of two pods"


def test_a_final_exit_code_ends_the_job_at_once(store: Store, image: str, make: Callable[..., Training]) -> None:
    said: list[str] = []
    training = make(said=said, queue="real", nodes=2)
    env = training.spec.env | {"TRIPOD_STORE": store.uri, "TRIPOD_TREE": "0" * 64, "AWS_ENDPOINT_URL": S3_ENDPOINT}
    spec = training.spec.model_copy(update={"image": image, "env": env | {"AWS_REGION": "us-east-1"}})
    with pytest.raises(UserError, match=r"node-0-\d-\w+ on gpu-0: error: TRIPOD_TREE: blobs/sha256/0+ is not in s3://"):
        launcher.run(dataclasses.replace(training, spec=spec))
    assert left_over(training.cluster, launching.TEAM, "placed") == []
    assert len([line for line in said if line.startswith("gpu: TrainJob")]) == 1


# ---- on the fake servers -------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """make(**settings) -> a Training whose pods are played by KWOK."""
    (tmp_path / "scratch").mkdir()
    store = open_store(f"file://{tmp_path}/fake")
    with open_gpu(read_place(launching.place(NO_IMAGE) | launching.directly(tmp_path))) as cluster:

        def make(
            *, said: list[str], namespace: str = launching.TEAM, priority: str = "normal", **settings: Any
        ) -> Training:
            own = {"TRIPOD_GPU_NAMESPACE": namespace, "TRIPOD_GRACE_S": "5", "TRIPOD_GPU_PRIORITY": priority}
            env = launching.place(NO_IMAGE, **settings) | own
            place = read_place(env)
            return Training(
                cluster=cluster,
                store=store,
                place=place,
                spec=train_spec(place, key="f" * 64, run_id="placed", args=[], env={}, tree="t"),
                recorded=lambda: False,
                scratch=tmp_path / "scratch",
                say=said.append,
                patience=Patience(poll_s=1, mark_s=2),
            )

        yield make
    kubectl(GPU, "-n", launching.TEAM, "delete", "trainjob", "-l", "tripod/run=placed", "--timeout=90s")


def test_eighty_gpus_are_placed_one_pod_a_node_and_stay(make: Callable[..., Training]) -> None:
    said: list[str] = []
    training = make(said=said, queue="train", nodes=10, nproc=8)
    running = threading.Thread(target=cancelled, args=(training,))
    running.start()
    wait_until(lambda: any(line.startswith("gpu: ranks") for line in said), running, said)
    before = len(said)
    time.sleep(20)  # Kueue once evicted what ran, seconds after it ran
    assert said[before:] == []
    assert [left.num_pods for left in left_over(training.cluster, launching.TEAM, "placed")] == [10]
    (ranks,) = [line for line in said if line.startswith("gpu: ranks")]
    assert len({part.split(" on ")[1] for part in ranks.split(", ")}) == 10
    ask_cancel(training.store, "placed")
    running.join(60)
    assert not running.is_alive()
    assert left_over(training.cluster, launching.TEAM, "placed") == []


def cancelled(training: Training) -> None:
    """Launch; the end is a cancel."""
    with pytest.raises(CancelledError):
        launcher.run(training)


@pytest.fixture
def two_out() -> Iterator[None]:
    """Quota for all 96 GPUs, but b300-3 is not ready, and b300-7 has a taint of an operator's."""
    set_quota(64)
    kubectl(GPU, "taint", "node", "b300-7", "repair=yes:NoSchedule")
    kubectl(GPU, "annotate", "node", "b300-3", f"{NOT_READY}=true")
    ready = [{"type": "Ready", "status": "False", "reason": "Test", "message": "set by a test"}]
    patch = json.dumps({"status": {"conditions": ready}})
    kubectl(GPU, "patch", "node", "b300-3", "--subresource=status", "--type=strategic", "-p", patch)
    yield
    kubectl(GPU, "annotate", "node", "b300-3", f"{NOT_READY}-")
    kubectl(GPU, "wait", "node", "b300-3", "--for=condition=Ready", "--timeout=60s")
    kubectl(GPU, "taint", "node", "b300-7", "repair-")
    set_quota(48)


def set_quota(gpus: int) -> None:
    """Of team-a's queue; team-b's has 32."""
    path = "/spec/resourceGroups/0/flavors/0/resources/0/nominalQuota"
    patch = json.dumps([{"op": "replace", "path": path, "value": gpus}])
    kubectl(GPU, "patch", "clusterqueue", launching.TEAM, "--type=json", "-p", patch)


def test_with_two_servers_out_eighty_gpus_are_placed_and_ninety_six_wait(
    make: Callable[..., Training], two_out: None
) -> None:
    said: list[str] = []
    training = make(said=said, queue="train", nodes=12, nproc=8)
    running = threading.Thread(target=cancelled, args=(training,))
    running.start()
    out = "servers that are out: b300-3 is not ready, b300-7 is tainted repair"
    wait_until(lambda: any(out in line for line in said), running, said)
    ask_cancel(training.store, "placed")
    running.join(60)
    withdraw_cancel(training.store, "placed")
    said.clear()
    training = make(said=said, queue="train", nodes=10, nproc=8)
    running = threading.Thread(target=cancelled, args=(training,))
    running.start()
    wait_until(lambda: any(line.startswith("gpu: ranks") for line in said), running, said)
    (ranks,) = [line for line in said if line.startswith("gpu: ranks")]
    used = {part.split(" on ")[1] for part in ranks.split(", ")}
    assert len(used) == 10
    assert not {"b300-3", "b300-7"} & used
    ask_cancel(training.store, "placed")
    running.join(60)


def wait_until(condition: Callable[[], bool], running: threading.Thread, said: list[str]) -> None:
    """Until the condition holds; the launcher must still run."""
    deadline = time.monotonic() + 120
    while not condition():
        assert running.is_alive(), said
        assert time.monotonic() < deadline, said
        time.sleep(0.5)


def test_a_job_larger_than_the_site_is_refused(make: Callable[..., Training]) -> None:
    training = make(said=[], queue="train", nodes=13, nproc=8)
    with pytest.raises(UserError, match=r"13 nodes are 104 GPUs, ClusterQueue team-a can give \d+ at most"):
        launcher.run(training)
    assert training.cluster.list(TRAINJOB, launching.TEAM, labels={"tripod/run": "placed"}) == []


def test_a_team_cannot_launch_as_another(make: Callable[..., Training]) -> None:
    with pytest.raises(UserError, match="forbidden"):
        launcher.run(make(said=[], namespace="team-b", queue="train", nodes=1, nproc=8))


def test_a_queue_that_is_not_the_teams(make: Callable[..., Training]) -> None:
    with pytest.raises(UserError, match="namespace team-a has no LocalQueue night; it has real, train"):
        launcher.run(make(said=[], queue="night"))
