"""The model as it is trained: sharded, started from the seed, with its loss inside.

Legend: B micro batch, L sequence length, H hidden size, V vocabulary, T = B x L target tokens.
"""

import hashlib
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from steps.lib.llama import ModelConfig, build
from steps.train import TrainConfig
from steps.train.gang import Gang


class TrainedLlama(LlamaForCausalLM):  # type: ignore[no-untyped-call] # transformers' __init_subclass__
    """transformers' Llama whose forward is the loss, so that FSDP's hooks span all of it."""

    chunk_tokens: int = 0
    """Logits are computed for this many tokens at a time; 0 for all at once."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Summed cross-entropy of the next tokens, float32 scalar.

        Args:
            tokens: int64 [B, L + 1].
        """
        hidden = self.model(input_ids=tokens[:, :-1]).last_hidden_state.flatten(0, 1)  # [T, H]
        targets = tokens[:, 1:].flatten()  # [T]
        if not self.chunk_tokens:
            return _loss_sum(self.lm_head, hidden, targets)
        total: Tensor = hidden.new_zeros((), dtype=torch.float32)
        for h, t in zip(torch.split(hidden, self.chunk_tokens), torch.split(targets, self.chunk_tokens), strict=True):
            # logits [chunk, V] are recomputed in the backward pass: at no time are all of them kept
            total = total + cast(Tensor, checkpoint(_loss_sum, self.lm_head, h, t, use_reentrant=False))
        return total


def _loss_sum(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden).float(), targets, reduction="sum")


def build_sharded(model: ModelConfig, train: TrainConfig, gang: Gang, eos_id: int) -> TrainedLlama:
    """The model with FSDP2 on every decoder layer and on the rest; memory allocated, values undefined."""
    with torch.device("meta"):
        net = build(model, attention=train.attention, eos_id=eos_id, kind=TrainedLlama)
    assert isinstance(net, TrainedLlama)
    net.chunk_tokens = train.loss_chunk_tokens
    layers = net.model.layers
    for i in range(len(layers)):
        if train.activation_checkpointing != "none":
            layers[i] = _checkpointed(layers[i], train.activation_checkpointing)
        if train.compile:
            layers[i].compile()
    policy = MixedPrecisionPolicy()
    if train.precision == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mesh=gang.mesh, mp_policy=policy)
    fully_shard(net, mesh=gang.mesh, mp_policy=policy)
    net.to_empty(device=gang.device)
    net.tie_weights()
    with gang.device:
        net.model.rotary_emb = LlamaRotaryEmbedding(net.config)  # its buffers are not in any checkpoint
    return net


def sync_gradients(net: TrainedLlama, on: bool) -> None:
    """Whether the next backward pass reduces gradients over the gang (only the last of a step does)."""
    cast(FSDPModule, net).set_requires_gradient_sync(on)


def parameters_by_name(net: nn.Module) -> dict[str, DTensor]:
    """Parameters by transformers' names, without the prefixes of wrappers; tied ones once."""
    return {
        name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""): cast(DTensor, parameter)
        for name, parameter in net.named_parameters()
    }


@torch.no_grad()
def initialise(net: TrainedLlama, seed: int) -> None:
    """Start values by transformers' rule (normal with std `initializer_range`, norms 1).

    Each parameter's full tensor is drawn from the seed and its name alone, so that any number of
    ranks starts from the same model; every rank keeps its own rows.
    """
    for name, parameter in parameters_by_name(net).items():
        full = torch.ones(parameter.shape)
        if parameter.dim() > 1:
            generator = torch.Generator().manual_seed(_seed_of(seed, name))
            full.normal_(0.0, net.config.initializer_range, generator=generator)
        full = full.to(parameter.device)
        own = distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(own.to_local())


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


def _checkpointed(layer: nn.Module, mode: str) -> nn.Module:
    """full: keep a layer's input alone. selective: also attention and every second matrix product."""
    if mode == "full":
        return checkpoint_wrapper(layer)
    return checkpoint_wrapper(layer, context_fn=_selective_contexts)


def _selective_contexts() -> Any:
    kept = {
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    }
    products = {False: 0, True: 0}  # forward and recomputation count for themselves

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op == torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            keep = products[context.is_recompute] % 2 == 1
        else:
            keep = op in kept
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
