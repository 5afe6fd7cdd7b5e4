"""What a checkpoint holds of a running training, as one flat dict of tensors; and random number generators."""

import hashlib
import json
import random
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from steps.lib.checkpoint import MODEL
from steps.lib.errors import UserError
from steps.train.optimizer import moments

_RNG_BYTES = 32 << 10
"""The generators' states as JSON, padded with spaces: a fixed size, so that buffers can be kept."""


def tensors(parameters: dict[str, DTensor], optimizer: AdamW) -> dict[str, Tensor]:
    """Model and optimizer, sharded as they are."""
    model: dict[str, Tensor] = {MODEL + name: parameter.detach() for name, parameter in parameters.items()}
    return model | moments(optimizer, parameters)


def rng_name(rank: int) -> str:
    """The generators of `rank` in the checkpoint."""
    return f"rng/{rank}"


def empty_rng() -> Tensor:
    """Room for `pack_rng`'s bytes."""
    return torch.zeros(_RNG_BYTES, dtype=torch.uint8)


def pack_rng(device: torch.device) -> Tensor:
    """The states of Python's, NumPy's and torch's generators, uint8 [_RNG_BYTES]. JSON: nothing to unpickle."""
    kind, keys, *rest = cast("tuple[str, npt.NDArray[np.uint32], int, int, float]", np.random.get_state(legacy=True))
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [kind, keys.tolist(), *rest],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes().hex()
    text = json.dumps(states, separators=(",", ":")).encode()
    assert len(text) <= _RNG_BYTES, f"generator states take {len(text)} bytes"
    return torch.frombuffer(bytearray(text.ljust(_RNG_BYTES)), dtype=torch.uint8)


def unpack_rng(packed: Tensor, device: torch.device) -> None:
    """Restore the generators from `pack_rng`'s bytes.

    Raises:
        UserError: the bytes are not such states.
    """
    try:
        states = json.loads(packed.numpy().tobytes())
        version, internal, gauss = states["python"]
        random.setstate((version, tuple(internal), gauss))
        np.random.set_state(tuple(states["numpy"]))
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(states["torch"]), dtype=torch.uint8))
        if device.type == "cuda":
            torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(states["cuda"]), dtype=torch.uint8), device)
    except (ValueError, KeyError, TypeError, RuntimeError) as e:
        raise UserError(f"random number generators: cannot be restored, {e}") from e


def seed_rng(seed: int, step: int, rank: int) -> None:
    """Start the generators afresh: at the first step, and after a resume with another number of ranks."""
    value = int.from_bytes(hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:8], "big") >> 1
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
