"""Estimates against torch's own counting."""

import pytest
import torch

from steps.lib.llama import ModelConfig, build, num_parameters
from steps.train import TrainConfig, size

LLAMA_3_8B = ModelConfig(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    sequence_length=8192,
    vocab_size=128256,
    tie_embeddings=False,
)
SMALL = ModelConfig(
    num_layers=3, hidden_size=64, intermediate_size=160, num_heads=4, num_kv_heads=2, sequence_length=48, vocab_size=500
)
GIB = 1 << 30


def recipe(**changes: object) -> TrainConfig:
    values = {"steps": 1, "global_batch": 16, "micro_batch": 1, "learning_rate": 1e-3, "checkpoint_every_steps": 1}
    return TrainConfig.model_validate({**values, **changes})


def counted(model: ModelConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(model).parameters())


@pytest.mark.parametrize("model", [LLAMA_3_8B, SMALL, SMALL.model_copy(update={"tie_embeddings": False})])
def test_parameters_as_torch_counts_them(model: ModelConfig) -> None:
    assert num_parameters(model) == counted(model)
    fewer = model.model_copy(update={"num_layers": model.num_layers - 1})
    assert size.parameters_of_a_layer(model) == counted(model) - counted(fewer)


def test_llama_3_8b_has_its_published_size() -> None:
    assert num_parameters(LLAMA_3_8B) == 8_030_261_248


def test_state_of_llama_3_8b_on_16_ranks() -> None:
    """By hand: 16 bytes a parameter in all, 1/16 of it here; what is whole: two layers, embedding, head, norm."""
    memory = size.estimate(LLAMA_3_8B, recipe(precision="bfloat16"), ranks=16)
    share = 8_030_261_248 / 16
    whole = 2 * 218_112_000 + 2 * 128256 * 4096 + 4096
    assert memory.optimizer_gib == pytest.approx(8 * share / GIB)
    assert memory.parameters_gib == pytest.approx((4 * share + 2 * whole) / GIB)
    assert memory.gradients_gib == pytest.approx(4 * (share + whole) / GIB)
    accumulating = size.estimate(LLAMA_3_8B, recipe(precision="bfloat16", global_batch=32), ranks=16)
    assert accumulating.gradients_gib == pytest.approx(4 * (share + 8_030_261_248) / GIB)
    replicated = size.estimate(LLAMA_3_8B, recipe(precision="bfloat16", replicate=2), ranks=16)
    assert replicated.optimizer_gib == pytest.approx(2 * memory.optimizer_gib)
    assert size.checkpoint_bytes(LLAMA_3_8B) == 12 * 8_030_261_248


@pytest.mark.parametrize(("precision", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_activations_as_autograd_keeps_them(precision: str, dtype: torch.dtype) -> None:
    tokens = 4 * SMALL.sequence_length
    kept = [bytes_kept(SMALL.model_copy(update={"num_layers": n}), dtype) for n in (1, 2, 3)]
    layer = size.layer_bytes_a_token(SMALL, dtype.itemsize)
    assert kept[2] - kept[1] == kept[1] - kept[0] == tokens * layer
    estimated = size.activation_bytes(SMALL, recipe(micro_batch=4, precision=precision))
    logits = tokens * SMALL.vocab_size * (dtype.itemsize + 8)
    assert estimated - logits == pytest.approx(kept[2], rel=0.05)


def test_checkpointing_and_chunks_keep_less() -> None:
    none, selective, full = (
        size.activation_bytes(LLAMA_3_8B, recipe(activation_checkpointing=mode))
        for mode in ("none", "selective", "full")
    )
    assert none > selective > full
    chunked = size.activation_bytes(LLAMA_3_8B, recipe(loss_chunk_tokens=1024))
    assert none - chunked == (8192 - 1024) * 128256 * 12


def bytes_kept(model: ModelConfig, dtype: torch.dtype) -> int:
    """Distinct storages that the decoder's forward pass saves for the backward pass, parameters apart."""
    net = build(model).to(dtype)
    parameters = {p.untyped_storage().data_ptr() for p in net.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage  # held, so that no address comes twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        net.model(input_ids=torch.zeros(4, model.sequence_length, dtype=torch.int64))
    return sum(storage.nbytes() for storage in saved.values())
