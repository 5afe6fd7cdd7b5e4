"""`python -m steps train`: what it refuses, how it ends when something goes wrong."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steps.lib import checkpoint, folder
from steps.lib.errors import Exit
from steps.lib.lease import Lease
from steps.lib.store import open_store
from tests.store.conftest import moto, proxy, use  # noqa: F401 - fixtures
from tests.store.servers import Answer, Proxy, Request
from tests.train.trainings import Command, base_of, newest_step, publish_dataset, tiny, trajectory


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A store with the dataset."""
    publish_dataset(open_store(f"file://{tmp_path}/store"))
    return f"file://{tmp_path}/store"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Start commands; what still runs at the end is killed."""
    started: list[Command] = []

    def start(*args: object, **kwargs: object) -> Command:
        started.append(Command(*args, tmp_path, **kwargs))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for command in started:
        command.kill()


def test_sizes_and_ids_that_do_not_fit_are_refused_at_once(uri: str, run: Callable[..., Command]) -> None:
    cases = {
        "global_batch: got 8, allowed are multiples of micro_batch x ranks = 3 x 2 = 6": run(uri, tiny(micro_batch=3)),
        "replicate: got 3, allowed are divisors of 2 ranks": run(uri, tiny(replicate=3)),
        "TRIPOD_NPROC: got 2, but PET_NPROC_PER_NODE is 4; they must be equal": run(
            uri, tiny(), env={"PET_NPROC_PER_NODE": "4"}
        ),
        "vocab_size: dataset datasets/tiny/v1 has max id 63, model has 60 rows; allowed is 64 or more": run(
            uri, tiny().model_copy(update={"model": tiny().model.model_copy(update={"vocab_size": 60})})
        ),
    }
    for message, command in cases.items():
        assert command.end()[1] == Exit.USER
        assert command.said() == f"error: {message}\n"
    assert not list(open_store(uri).list("checkpoints"))


def test_a_worker_that_dies_is_named_and_the_gang_ends(uri: str, run: Callable[..., Command]) -> None:
    params = tiny(steps=100_000, checkpoint_every_steps=5)
    command = run(uri, params)
    command.wait_until(lambda: newest_step(uri) > 0)
    os.kill(command.workers()[1], signal.SIGKILL)
    assert command.end()[1] == Exit.TEMPORARY
    assert command.last_line().startswith("error: rank 1 is gone without a word: killed by SIGKILL; checkpoints/")
    assert command.last_line().endswith("stays current")
    assert not command.workers()


def test_a_second_run_is_refused_and_a_done_one_returns_at_once(uri: str, run: Callable[..., Command]) -> None:
    store = open_store(uri)
    params = tiny(steps=4)
    first = run(uri, params).result()
    assert first["checkpoint"] == f"{base_of(store)}/step-4"
    assert first["num_tokens"] == 4 * 8 * 32
    losses = [line["loss"] for line in trajectory(store)]
    assert first["train_loss"] == pytest.approx(sum(losses) / 4)

    store.delete([head.key for head in store.list("records")])
    again = run(uri, params)
    assert again.result() == first
    assert "progress" not in again.said(), "taken from the last checkpoint"

    store.delete([head.key for head in store.list("records")])
    checkpoint.clear(store, first["checkpoint"])
    with Lease(store, f"{base_of(store)}/lease.json", run_id="tuesday"):
        refused = run(uri, params)
        assert refused.end()[1] == Exit.USER
    assert "already running: tuesday" in refused.last_line()


@pytest.mark.slow
def test_stopped_while_the_store_is_slow(
    proxy: Proxy,  # noqa: F811
    use: Callable[[Proxy], str],  # noqa: F811
    run: Callable[..., Command],
) -> None:
    """A save that outlasts the grace: the checkpoint before stays current, and the exit code says preempted."""
    uri = use(proxy)
    store = open_store(uri)
    publish_dataset(store)
    slow = [False]

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer:
        if slow[0] and request.method == "PUT" and "/rank-" in request.path:
            time.sleep(45)
        return forward()

    proxy.rule = rule
    params = tiny(steps=100_000, checkpoint_every_steps=20)
    command = run(uri, params, env={"TRIPOD_GRACE_S": "6"})
    command.wait_until(lambda: newest_step(uri) > 0)
    slow[0] = True
    asked = time.monotonic()
    command.process.send_signal(signal.SIGTERM)
    assert command.end()[1] == Exit.PREEMPTED
    assert time.monotonic() - asked < 6, "gone before the place would have killed it"
    current = f"{base_of(store)}/step-{newest_step(uri)}"
    assert command.last_line() == f"error: stopped before the state was saved, grace 6 s; {current} stays current"
    assert checkpoint.problem_with(store, current) == ""
    assert not command.workers()


def test_an_outage_of_the_store_costs_no_save_and_no_restart(
    proxy: Proxy,  # noqa: F811
    use: Callable[[Proxy], str],  # noqa: F811
    run: Callable[..., Command],
) -> None:
    """One rank cannot reach the store: all ranks wait for it and then commit that very step."""
    uri = use(proxy)
    store = open_store(uri)
    publish_dataset(store)
    away = [True]

    def rule(request: Request, forward: Callable[[], Answer]) -> Answer:
        if away[0] and "/rank-00001.bin" in request.path:
            return Answer(503, "SlowDown")
        return forward()

    proxy.rule = rule
    params = tiny(steps=12, checkpoint_every_steps=4, keep_checkpoints=9, max_failed_saves=0)
    command = run(uri, params, env={"TRIPOD_STORE_RETRY_S": "1"})
    command.wait_until(lambda: "waits for the store" in command.said())
    away[0] = False
    command.result()
    said = command.said()
    assert said.count("step-4 waits for the store: rank 1: upload ") == 1
    assert "was not saved" not in said
    assert checkpoint.committed_steps(store, base_of(store)) == [12, 8, 4]


def test_stopped_before_the_first_step(uri: str, run: Callable[..., Command]) -> None:
    command = run(uri, tiny(steps=100_000, checkpoint_every_steps=100_000))
    command.wait_until(lambda: len(command.workers()) == 2)
    command.process.send_signal(signal.SIGTERM)
    assert command.end()[1] == Exit.PREEMPTED
    assert "stopped at step" in command.last_line() or "stopped before" in command.last_line()


def test_a_damaged_shard_is_named_before_it_is_trained_on(uri: str, run: Callable[..., Command]) -> None:
    store = open_store(uri)
    shard = folder.load(store, "datasets/tiny/v1").files[0]
    data = bytearray(store.get(shard.key))
    data[shard.meta["values_offset"]] ^= 1
    store.put(shard.key, bytes(data))
    command = run(uri, tiny())
    assert command.end()[1] == Exit.USER
    assert f"error: datasets/tiny/v1: {shard.key} differs from the digest in its manifest" in command.said()
    assert not [head for head in store.list("checkpoints") if "step-" in head.key]
