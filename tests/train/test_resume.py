"""A training that was killed and stopped again and again ends as one that was left alone."""

import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from steps.lib.errors import Exit
from steps.lib.store import Store, open_store
from tests.train.trainings import (
    Command,
    bytes_of_checkpoint,
    newest_step,
    publish_dataset,
    tiny,
    trajectory,
)

PARAMS = tiny(dropout=0.1, steps=200, checkpoint_every_steps=10)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Store]:
    """The result of a training on two ranks that nobody disturbed, and its store."""
    folder = tmp_path_factory.mktemp("calm")
    store = open_store(f"file://{folder}/store")
    publish_dataset(store)
    return Command(store.uri, PARAMS, folder).result(), store


@pytest.mark.slow
def test_killed_and_stopped_at_random_equals_uninterrupted(calm: tuple[dict[str, Any], Store], tmp_path: Path) -> None:
    expected, undisturbed = calm
    store = open_store(f"file://{tmp_path}/rough")
    publish_dataset(store)
    seed = int(os.environ.get("TRIPOD_TEST_SEED", time.time_ns() % 10_000))
    print(f"TRIPOD_TEST_SEED={seed}")
    chance = random.Random(seed)
    ends = []
    for how in ("kill the command", "stop the command", "stop one worker"):
        command = Command(store.uri, PARAMS, tmp_path)
        before = newest_step(store.uri)
        command.wait_until(lambda before=before: newest_step(store.uri) > before)
        time.sleep(chance.uniform(0, 0.2))
        interrupt(command, how, chance)
        ends.append(command.end()[1])
        assert not command.workers(), "no stray processes"
    assert ends == [-signal.SIGKILL, Exit.PREEMPTED, Exit.PREEMPTED]
    assert Command(store.uri, PARAMS, tmp_path).result() == expected

    assert len(trajectory(undisturbed)) == PARAMS.train.steps
    assert trajectory(store) == trajectory(undisturbed)
    assert bytes_of_checkpoint(store, PARAMS.train.steps) == bytes_of_checkpoint(undisturbed, PARAMS.train.steps)


@pytest.mark.slow
def test_two_nodes_with_an_agent_each(calm: tuple[dict[str, Any], Store], tmp_path: Path) -> None:
    """Stopped through the agent of node 1, gone on by the same commands; the same as one node with two processes."""
    expected, one_node = calm
    store = open_store(f"file://{tmp_path}/two")
    publish_dataset(store)
    nodes = start_nodes(store, tmp_path)
    nodes[0].wait_until(lambda: "progress" in nodes[0].said())
    nodes[1].process.send_signal(signal.SIGTERM)
    assert [node.end()[1] for node in nodes] == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert [node.result() for node in start_nodes(store, tmp_path)] == [expected, expected]
    assert trajectory(store) == trajectory(one_node)


def start_nodes(store: Store, folder: Path) -> list[Command]:
    """Two agents with one process each, as Kubeflow Trainer's pods would start them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [Command(store.uri, PARAMS, folder, nproc=1, env={**place, "PET_NODE_RANK": str(n)}) for n in (0, 1)]


def interrupt(command: Command, how: str, chance: random.Random) -> None:
    """Send the signal that `how` names."""
    if how == "kill the command":
        command.kill()
    elif how == "stop the command":
        command.process.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
    else:
        os.kill(chance.choice(command.workers()), signal.SIGTERM)
