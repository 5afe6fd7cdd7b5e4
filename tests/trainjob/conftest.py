"""A GPU cluster to launch on, as far as a launcher sees one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from steps.lib.kube import Cluster, open_cluster
from steps.lib.kube.kinds import CLUSTER_TRAINING_RUNTIME
from steps.lib.store import Store
from steps.lib.trainjob.build import train_spec
from steps.lib.trainjob.place import read_place
from steps.lib.trainjob.training import Patience, Training
from tests.kube.api import Api, serving
from tests.trainjob.controllers import NAMESPACE, install_queue

KEY = "0123456789abcdef" * 4
RECORD = f"records/train/{KEY}.json"
FAST = Patience(poll_s=0.02, mark_s=0.05, away_s=20, stuck_s=0.5, logs_s=5)


@pytest.fixture
def api() -> Api:
    """Objects of the API server, with a queue of 96 GPUs."""
    api = Api()
    install_queue(api)
    pod = {"template": {"spec": {"terminationGracePeriodSeconds": 300}}}
    replicated = {"replicatedJobs": [{"name": "node", "template": {"spec": pod}}]}
    api.put(
        CLUSTER_TRAINING_RUNTIME, {"metadata": {"name": "tripod-train"}, "spec": {"template": {"spec": replicated}}}
    )
    return api


@pytest.fixture
def kubeconfig(api: Api, tmp_path: Path) -> Iterator[Path]:
    """For the API server."""
    with serving(api, tmp_path) as config:
        yield config


@pytest.fixture
def cluster(kubeconfig: Path) -> Iterator[Cluster]:
    """The API server as the product sees it."""
    with open_cluster("gpu", kubeconfig=str(kubeconfig), retry_s=0.5) as cluster:
        yield cluster


Make = Callable[..., Training]


@pytest.fixture
def make(cluster: Cluster, store: Store, tmp_path: Path) -> Iterator[Make]:
    """make(run_id=, said=, **settings) -> a Training of key KEY; its record is RECORD."""
    with ExitStack():

        def make(
            *, run_id: str = "monday", said: list[str] | None = None, patience: Patience = FAST, **env: Any
        ) -> Training:
            place = read_place(
                {
                    "TRIPOD_IMAGE_TRAIN": "registry.internal/train@sha256:0",
                    "TRIPOD_GPU_NAMESPACE": NAMESPACE,
                    "TRIPOD_GPU_QUEUE": "train",
                    "TRIPOD_GPU_NODES": "2",
                    **env,
                }
            )
            scratch = tmp_path / f"scratch-{len(list(tmp_path.iterdir()))}"
            scratch.mkdir()
            return Training(
                cluster=cluster,
                store=store,
                place=place,
                spec=train_spec(place, key=KEY, run_id=run_id, args=[], env={"TRIPOD_RUN_ID": run_id}, tree="t"),
                recorded=lambda: store.head(RECORD) is not None,
                scratch=scratch,
                say=(said if said is not None else []).append,
                patience=patience,
            )

        yield make
