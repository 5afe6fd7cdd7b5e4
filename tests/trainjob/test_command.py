"""`python -m steps train` as the launcher, the pods for real: processes with the TrainJob's command and environment."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.lib.kube.kinds import POD, TRAINJOB
from steps.lib.store import Store
from steps.lib.trainjob.cancel import ask_cancel
from steps.train import Params
from tests.kube.api import Api, Object
from tests.train.trainings import Command, newest_step, publish_dataset, tiny
from tests.trainjob.controllers import NAMESPACE, Controllers, env_of, train_jobs


class Pods:
    """Runs a TrainJob's pods as processes of this machine, as Trainer would start them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def __call__(self, job: Object) -> list[tuple[int, str]]:
        trainer = job["spec"]["trainer"]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "TMPDIR": str(self.folder),
        }
        command = [sys.executable, *trainer["command"][1:], *trainer["args"]]
        for rank in range(trainer["numNodes"]):
            env = _inherited() | env_of(job) | place | {"PET_NODE_RANK": str(rank)}
            with (self.folder / f"pod-{rank}.log").open("wb") as log:
                self.processes.append(
                    subprocess.Popen(command, env=env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
                )
        return [(process.wait(100), self.said(rank)) for rank, process in enumerate(self.processes)]

    def said(self, rank: int) -> str:
        return (self.folder / f"pod-{rank}.log").read_text()


def _inherited() -> dict[str, str]:
    """A pod knows nothing of the launcher's machine, but for what this machine needs to run Python."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LD_LIBRARY_PATH")}


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    folder = tmp_path / "pods"
    folder.mkdir()
    pods = Pods(folder)
    yield pods
    for process in pods.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def launch(store: Store, kubeconfig: Path, tmp_path: Path) -> Any:
    """launch(params) -> the launcher, started."""
    publish_dataset(store)

    def launch(params: Params) -> Command:
        env = {
            "TRIPOD_RUN_ID": "monday",
            "TRIPOD_TRAIN_TARGET": "kubernetes",
            "TRIPOD_GPU_KUBECONFIG": str(kubeconfig),
            "TRIPOD_GPU_NAMESPACE": NAMESPACE,
            "TRIPOD_GPU_QUEUE": "train",
            "TRIPOD_GPU_NODES": "2",
            "TRIPOD_IMAGE_TRAIN": "registry.internal/train@sha256:0",
        }
        return Command(store.uri, params, tmp_path / "launcher", nproc=1, env=env)

    return launch


@pytest.mark.slow
def test_two_pods_train_and_the_launcher_returns_their_record(api: Api, store: Store, launch: Any, pods: Pods) -> None:
    with Controllers(api, pods):
        command = launch(tiny())
        result = command.result()
    assert result["step"] == 8
    assert newest_step(store.uri) == 8
    (record,) = [head.key for head in store.list("records/train")]
    assert "2 cpu ranks" in pods.said(0), "of two nodes"
    assert record.split("/")[-1][:16] == train_jobs(api)[0].removeprefix("train-").removesuffix("-1")
    assert api.of(TRAINJOB) == []
    again = launch(tiny())
    assert again.result() == result
    assert len(train_jobs(api)) == 1


@pytest.mark.slow
def test_sigterm_leaves_the_training_running_and_the_next_call_adopts_it(
    api: Api, store: Store, launch: Any, pods: Pods
) -> None:
    params = tiny(steps=40, checkpoint_every_steps=20)
    with Controllers(api, pods):
        first = launch(params)
        first.wait_until(lambda: "gpu: Running" in first.said())
        first.process.send_signal(signal.SIGTERM)
        assert first.end()[1] == 75
        assert "run again to follow it" in first.last_line()
        assert len(api.of(TRAINJOB)) == 1
        second = launch(params)
        assert second.result()["step"] == 40
    assert "going on with TrainJob" in second.said()
    assert len(train_jobs(api)) == 1


def test_sigterm_of_a_cancelled_run_ends_the_gpu_job(api: Api, store: Store, launch: Any, pods: Pods) -> None:
    with Controllers(api, pods):
        command = launch(tiny(steps=100_000, checkpoint_every_steps=100_000))
        command.wait_until(lambda: "gpu: Running" in command.said())
        ask_cancel(store, "monday")
        command.process.send_signal(signal.SIGTERM)
        assert command.end()[1] == 130
        for process in pods.processes:  # deleted pods get SIGTERM
            process.terminate()
    assert "run monday was cancelled" in command.last_line()
    assert (api.of(TRAINJOB), api.of(POD)) == ([], [])


def test_pods_with_other_libraries_are_refused_not_awaited(api: Api, store: Store, launch: Any, pods: Pods) -> None:
    def other_key(job: Object) -> list[tuple[int, str]]:
        for var in job["spec"]["trainer"]["env"]:
            if var["name"] == "TRIPOD_TRAIN_KEY":
                var["value"] = "f" * 64
        return pods(job)

    with Controllers(api, other_key):
        command = launch(tiny())
        assert command.end()[1] == 2
    assert "train-key: this pod's is" in command.last_line()
    assert list(store.list("records/train")) == []


def test_refused_before_gpus_are_asked_for(api: Api, launch: Any) -> None:
    command = launch(tiny(global_batch=9, micro_batch=3))
    assert command.end()[1] == 2
    assert "global_batch: got 9, allowed are multiples of micro_batch x ranks = 3 x 2 = 6" in command.last_line()
    assert train_jobs(api) == []
