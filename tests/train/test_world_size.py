"""The same training on one and on two ranks, sharded and replicated."""

from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.slow
def test_other_numbers_of_ranks_go_on_at_the_exact_sample(tmp_path: Path) -> None:
    """Two ranks for 40 steps; from step 20 on one rank; from step 30, as one rank saved it, on two; replicated."""
    params = tiny(steps=STEPS, checkpoint_every_steps=10, keep_checkpoints=9)
    two = open_store(f"file://{tmp_path}/two")
    publish_dataset(two)
    Command(two.uri, params, tmp_path, nproc=2).result()
    expected = trajectory(two)
    check_samples(two, params, expected)
    base = base_of(two)

    for start, nproc in ((20, 1), (30, 2)):
        forget_after(two, start)
        assert checkpoint.read_meta(two, f"{base}/step-{start}").world_size != nproc
        Command(two.uri, params, tmp_path, nproc=nproc).result()
        got = trajectory(two)
        assert same_apart_from_rounding(got, expected)
        assert got[:20] == expected[:20]
        assert checkpoint.read_meta(two, f"{base}/step-{STEPS}").optimizer_steps == STEPS

    replicated = open_store(f"file://{tmp_path}/replicated")
    publish_dataset(replicated)
    params = params.model_copy(update={"train": params.train.model_copy(update={"replicate": 2})})
    Command(replicated.uri, params, tmp_path, nproc=2).result()
    assert same_apart_from_rounding(trajectory(replicated)[:20], expected[:20])
    sharded_bytes, replicated_bytes = bytes_of_tensors(two), bytes_of_tensors(replicated)
    assert replicated_bytes == sharded_bytes, "saved once, not by each replica"


def same_apart_from_rounding(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """Samples and learning rates equal, losses within the band."""
    assert [line["loss"] for line in got] == pytest.approx([line["loss"] for line in expected], rel=BAND)
    return [(line["ids"], line["lr"]) for line in got] == [(line["ids"], line["lr"]) for line in expected]


def bytes_of_tensors(store: Store) -> int:
    """Of the last checkpoint."""
    return sum(head.size for head in store.list(f"{base_of(store)}/step-{STEPS}") if "/rank-" in head.key)


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
