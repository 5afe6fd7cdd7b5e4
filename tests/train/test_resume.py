"""A training that was killed and stopped again and again ends as one that was left alone."""

import os
import random
import signal
import time
from pathlib import Path

from steps.lib.errors import Exit
from steps.lib.store import open_store
from tests.train.trainings import (
    Command,
    bytes_of_checkpoint,
    newest_step,
    publish_dataset,
    tiny,
    trajectory,
)


def test_killed_and_stopped_at_random_equals_uninterrupted(tmp_path: Path) -> None:
    params = tiny(dropout=0.1, steps=250, checkpoint_every_steps=20)
    calm, rough = f"file://{tmp_path}/calm", f"file://{tmp_path}/rough"
    for uri in (calm, rough):
        publish_dataset(open_store(uri))
    expected = Command(calm, params, tmp_path).result()

    seed = int(os.environ.get("TRIPOD_TEST_SEED", time.time_ns() % 10_000))
    print(f"TRIPOD_TEST_SEED={seed}")
    chance = random.Random(seed)
    ends = []
    for how in ("kill the command", "stop the command", "stop one worker"):
        command = Command(rough, params, tmp_path)
        before = newest_step(rough)
        command.wait_until(lambda before=before: newest_step(rough) > before)
        time.sleep(chance.uniform(0, 0.4))
        interrupt(command, how, chance)
        ends.append(command.end()[1])
        assert not command.workers(), "no stray processes"
    assert ends == [-signal.SIGKILL, Exit.PREEMPTED, Exit.PREEMPTED]
    assert Command(rough, params, tmp_path).result() == expected

    assert len(trajectory(open_store(calm))) == 250
    assert trajectory(open_store(rough)) == trajectory(open_store(calm))
    assert bytes_of_checkpoint(open_store(rough), 250) == bytes_of_checkpoint(open_store(calm), 250)


def interrupt(command: Command, how: str, chance: random.Random) -> None:
    """Send the signal that `how` names."""
    if how == "kill the command":
        command.kill()
    elif how == "stop the command":
        command.process.send_signal(chance.choice([signal.SIGTERM, signal.SIGINT]))
    else:
        os.kill(chance.choice(command.workers()), signal.SIGTERM)
