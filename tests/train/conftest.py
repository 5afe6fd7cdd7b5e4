"""A gang of one rank inside the test's own process."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch

from steps.lib.store import Store
from steps.train import Params
from steps.train.gang import Gang, join
from steps.train.job import Job
from steps.train.loop import Loop
from steps.train.runtime import Runtime
from steps.train.work import set_up
from tests.train.trainings import publish_dataset

BASE = "checkpoints/test"
Trainer = Callable[..., Loop]


@pytest.fixture
def gang(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gang]:
    """This process alone."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    logging.getLogger("c10d-NullHandler-dcp_logger").setLevel(logging.WARNING)  # pages of it after a failure
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, threads)
        yield stack.enter_context(join(Runtime(), replicate=1, rank=0, local_rank=0, ranks=1))


@pytest.fixture
def make_loop(gang: Gang, store: Store) -> Trainer:
    """make_loop(params) -> a Loop on `store`, set up as a worker does it: another call resumes."""
    publish_dataset(store)

    def make(
        params: Params, *, on: Store = store, should_stop: Callable[[], bool] = lambda: False, wait_s: int = 60
    ) -> Loop:
        runtime = Runtime(store_wait_s=wait_s)
        job = Job(params=params, store_uri=on.uri, base=BASE, eos_id=0, runtime=runtime)
        return set_up(job, on, gang, should_stop)

    return make
