"""AdamW over sharded parameters, and its state by parameter name."""

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from steps.train import TrainConfig


def make_optimizer(parameters: dict[str, DTensor], config: TrainConfig) -> AdamW:
    """AdamW (Loshchilov and Hutter) with its state made at once, so that a save before the first step is whole.

    Weight decay is for matrices alone: vectors (norms) have none.
    """
    matrices = [p for p in parameters.values() if p.dim() > 1]
    vectors = [p for p in parameters.values() if p.dim() <= 1]
    optimizer = AdamW(
        [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def set_learning_rate(optimizer: AdamW, learning_rate: float) -> None:
    """For the next step."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def clip_gradients(parameters: dict[str, DTensor], max_norm: float) -> float:
    """Scale gradients down to a global norm of `max_norm`.

    Returns:
        The norm before; bit-equal on all ranks, not finite when any gradient is not.
    """
    gradients = [cast(DTensor, p.grad) for p in parameters.values() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    # torch's clip_grad_norm_ leaves the norm's sum over the ranks to each of its uses: one collective more a use
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    torch._foreach_mul_([g.to_local() for g in gradients], torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return float(norm)


def is_usable(norm: float) -> bool:
    """Whether gradients of this norm may be applied."""
    return math.isfinite(norm)


def moments(optimizer: AdamW, parameters: dict[str, DTensor]) -> dict[str, Tensor]:
    """`exp_avg/<name>` and `exp_avg_sq/<name>` of every parameter."""
    return {
        f"{kind}/{name}": optimizer.state[parameter][kind]
        for kind in ("exp_avg", "exp_avg_sq")
        for name, parameter in parameters.items()
    }


def set_applied_steps(optimizer: AdamW, steps: int) -> None:
    """Restore AdamW's own step count, which bias correction depends on."""
    for state in optimizer.state.values():
        state["step"].fill_(steps)
