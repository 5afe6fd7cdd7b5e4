"""The same training on one and on two ranks, sharded and replicated."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from steps.lib import checkpoint
from steps.lib.loader import Loader
from steps.lib.store import Store, open_store
from steps.train import Params
from tests.train.trainings import (
    DATASET,
    Command,
    base_of,
    publish_dataset,
    tiny,
    trajectory,
)

STEPS = 40
BAND = 1e-4
"""Relative difference of losses that reduction order may cause over 20 steps."""


def test_other_numbers_of_ranks_go_on_at_the_exact_sample(tmp_path: Path) -> None:
    params = tiny(steps=STEPS, checkpoint_every_steps=10, keep_checkpoints=9)
    two = open_store(f"file://{tmp_path}/two")
    publish_dataset(two)
    Command(two.uri, params, tmp_path, nproc=2).result()
    expected = trajectory(two)
    check_samples(two, params, expected)

    for start, nproc, name in ((20, 1, "two to one"), (30, 2, "one to two")):
        shutil.copytree(tmp_path / "two", tmp_path / name.replace(" ", "-"))
        store = open_store(f"file://{tmp_path}/{name.replace(' ', '-')}")
        forget_after(store, start)
        if name == "one to two":  # step 30 as one rank saves it, from step 20 as two did
            forget_after(store, 20)
            Command(store.uri, params, tmp_path, nproc=1).result()
            forget_after(store, 30)
            assert checkpoint.read_meta(store, f"{base_of(store)}/step-30").world_size == 1
        before = checkpoint.read_meta(store, f"{base_of(store)}/step-{start}")
        Command(store.uri, params, tmp_path, nproc=nproc).result()
        got = trajectory(store)
        assert before.world_size != nproc
        assert [line["ids"] for line in got] == [line["ids"] for line in expected]
        assert [line["lr"] for line in got] == [line["lr"] for line in expected]
        assert got[:20] == expected[:20]
        assert [line["loss"] for line in got] == pytest.approx([line["loss"] for line in expected], rel=BAND)
        assert checkpoint.read_meta(store, f"{base_of(store)}/step-{STEPS}").optimizer_steps == STEPS


def test_replicated_shards_train_alike_and_are_saved_once(tmp_path: Path) -> None:
    sizes, losses, models = [], [], []
    for name, replicate in (("sharded", 1), ("replicated", 2)):
        store = open_store(f"file://{tmp_path}/{name}")
        publish_dataset(store)
        Command(store.uri, tiny(steps=20, checkpoint_every_steps=20, replicate=replicate), tmp_path).result()
        prefix = f"{base_of(store)}/step-20"
        sizes.append(sum(head.size for head in store.list(prefix) if "/rank-" in head.key))
        losses.append([line["loss"] for line in trajectory(store)])
        models.append(checkpoint.load_model_state(store, prefix))
    assert sizes[0] == sizes[1]
    assert losses[1] == pytest.approx(losses[0], rel=BAND)
    for name, values in models[0].items():
        torch.testing.assert_close(models[1][name], values, rtol=1e-2, atol=1e-3)


def check_samples(store: Store, params: Params, lines: list[dict[str, Any]]) -> None:
    """Over whole epochs every sample comes equally often; each step has the samples of its positions."""
    loader = Loader(store, DATASET, sequence_length=32, seed=params.train.seed, window_mib=0.001)
    ids = [i for line in lines for i in line["ids"]]
    assert ids == loader.ids(0, len(ids)).tolist()
    epochs = len(ids) // loader.num_samples
    assert epochs >= 2
    for epoch in range(epochs):
        part = ids[epoch * loader.num_samples : (epoch + 1) * loader.num_samples]
        assert sorted(part) == list(range(loader.num_samples))


def forget_after(store: Store, step: int) -> None:
    """Remove checkpoints after `step`, and the result record, as if the training had been stopped there."""
    for later in checkpoint.committed_steps(store, base_of(store)):
        if later > step:
            checkpoint.clear(store, f"{base_of(store)}/step-{later}")
    store.delete([head.key for head in store.list("records")])
