"""The loop on one rank, against plain PyTorch and against itself after a stop."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

from steps.lib import checkpoint
from steps.lib.errors import RejectedError
from steps.lib.llama import ModelConfig, build
from steps.lib.loader import Loader
from steps.lib.store import Store
from steps.train import metrics
from steps.train.loop import MAX_SKIPPED_IN_A_ROW
from tests.train.conftest import BASE, Trainer
from tests.train.trainings import DATASET, tiny


def full(parameters: dict[str, DTensor]) -> dict[str, torch.Tensor]:
    return {name: p.full_tensor().detach().clone() for name, p in parameters.items()}


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_two_steps_equal_plain_transformers_and_adamw(tie_embeddings: bool, make_loop: Trainer, store: Store) -> None:
    params = tiny(tie_embeddings=tie_embeddings, steps=2, checkpoint_every_steps=2)
    loop = make_loop(params)
    reference = build(params.model)
    reference.load_state_dict({**full(loop.training.parameters)}, strict=False)
    reference.tie_weights()
    loop.run()

    decayed = [p for p in reference.parameters() if p.dim() > 1]
    plain = [p for p in reference.parameters() if p.dim() == 1]
    config = params.train
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        betas=(config.beta1, config.beta2),
        foreach=False,
    )
    samples = Loader(store, DATASET, sequence_length=32, seed=config.seed, window_mib=config.shuffle_window_mib)
    losses = []
    for step in range(2):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * (step + 1) / config.warmup_steps
        tokens = torch.from_numpy(samples.read(samples.ids(step * 8, 8)))
        logits = reference(input_ids=tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(reference.parameters(), config.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert [line["loss"] for line in metrics.read(store, BASE)] == pytest.approx(losses, rel=1e-5)
    for name, parameter in reference.named_parameters():
        trained = loop.training.parameters[name].full_tensor()
        torch.testing.assert_close(trained, parameter.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["chunked loss", "full", "selective"])
def test_variants_train_alike_under_the_same_names(variant: str, make_loop: Trainer) -> None:
    changes = {
        "chunked loss": {"loss_chunk_tokens": 24},  # does not divide the 64 tokens of a micro batch
        "full": {"activation_checkpointing": "full"},
        "selective": {"activation_checkpointing": "selective"},
    }[variant]
    plain, other = make_loop(tiny()), make_loop(tiny(**changes))
    names = names_in_transformers(other.job.params.model)
    assert list(other.training.parameters) == names
    batch = plain.batches.take()
    losses = []
    for loop in (plain, other):
        losses.append(float(loop._backward(torch.from_numpy(batch[1]))))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    for name in names:
        expected = plain.training.parameters[name].grad.full_tensor()
        torch.testing.assert_close(other.training.parameters[name].grad.full_tensor(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # torch's own, when it compiles
def test_names_under_compile_and_wrappers(make_loop: Trainer) -> None:
    loop = make_loop(tiny(compile=True, activation_checkpointing="full"))
    assert list(loop.training.parameters) == names_in_transformers(loop.job.params.model)


def test_start_values_follow_transformers_rule(make_loop: Trainer) -> None:
    parameters = full(make_loop(tiny()).training.parameters)
    again = full(make_loop(tiny()).training.parameters)
    other = full(make_loop(tiny(seed=12)).training.parameters)
    for name, values in parameters.items():
        assert torch.equal(values, again[name]), "the same seed, the same model"
        if values.dim() == 1:
            assert torch.equal(values, torch.ones_like(values))
        else:
            assert not torch.equal(values, other[name])
            assert abs(float(values.mean())) < 4 * 0.02 / math.sqrt(values.numel())
            assert float(values.std()) == pytest.approx(0.02, rel=0.1)
    drawn = [float(v.flatten()[0]) for v in parameters.values() if v.dim() > 1]
    assert len(set(drawn)) == len(drawn), "each parameter has numbers of its own"


@pytest.mark.parametrize("stop_after", [4, 5, 7, 12])
def test_learning_rate_and_losses_after_a_stop(stop_after: int, make_loop: Trainer, store: Store) -> None:
    params = tiny(dropout=0.1, steps=20, checkpoint_every_steps=50)
    assert make_loop(params).run()
    straight = metrics.read(store, BASE)
    expected = [1e-2 * step / 5 for step in range(1, 6)]
    expected += [1e-4 + 0.5 * (1e-2 - 1e-4) * (1 + math.cos(math.pi * k / 15)) for k in range(1, 16)]
    assert [line["lr"] for line in straight] == pytest.approx(expected, rel=1e-12)
    checkpoint.clear(store, checkpoint.prefix_of(BASE, 20))

    loop = make_loop(params)
    loop.should_stop = lambda: loop.training.step >= stop_after - 1  # heard one step later
    assert not loop.run()
    assert loop.training.step == stop_after
    assert make_loop(params).run()
    assert without_times(metrics.read(store, BASE)) == without_times(straight)


def test_non_finite_gradients_are_skipped_and_counted(make_loop: Trainer, store: Store) -> None:
    loop = make_loop(tiny(steps=6))
    poison = {2, 3}
    backward = loop._backward

    def poisoned(tokens: torch.Tensor) -> torch.Tensor:
        loss = backward(tokens)
        if loop.training.step + 1 in poison:
            next(iter(loop.training.parameters.values())).grad.fill_(math.nan)
        return loss

    loop._backward = poisoned
    before = {}
    step = loop._step

    def watched(ids: np.ndarray, tokens: np.ndarray) -> None:
        before[loop.training.step + 1] = full(loop.training.parameters)
        step(ids, tokens)

    loop._step = watched
    assert loop.run()
    lines = metrics.read(store, BASE)
    assert [line["step"] for line in lines if line["skipped"]] == [2, 3]
    assert [line["grad_norm"] is None for line in lines] == [False, True, True, False, False, False]
    same = [all(torch.equal(before[a][n], before[a + 1][n]) for n in before[a]) for a in range(1, 6)]
    assert same == [False, True, True, False, False]
    assert checkpoint.read_meta(store, checkpoint.prefix_of(BASE, 6)).optimizer_steps == 4


def test_a_lost_model_stops_the_training(make_loop: Trainer) -> None:
    loop = make_loop(tiny(steps=100))
    with torch.no_grad():
        next(iter(loop.training.parameters.values())).fill_(math.nan)
    with pytest.raises(RejectedError, match=f"step {MAX_SKIPPED_IN_A_ROW}: gradients were not finite"):
        loop.run()


def names_in_transformers(model: ModelConfig) -> list[str]:
    return [name for name, _ in build(model).named_parameters()]


def without_times(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
