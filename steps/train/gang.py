"""The processes that train together: their groups, their mesh, their device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from steps.lib.errors import UserError
from steps.train.runtime import Runtime

_JOIN = timedelta(minutes=10)
"""How long ranks wait for each other; also the longest a collective may take."""
_SAVE = timedelta(hours=1)
"""The same for checkpoints, whose ranks wait for each other's uploads."""


@dataclass(frozen=True, kw_only=True)
class Gang:
    """This process's place in the gang."""

    rank: int
    ranks: int
    device: torch.device
    mesh: DeviceMesh
    """(replicate, shard), or (shard) alone."""
    control: dist.ProcessGroup
    """gloo: stop flags and sums, one small message a step."""
    checkpoints: dist.ProcessGroup
    """gloo, of its own: used by the thread that saves, while the loop uses the others."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that tells and logs."""
        return self.rank == 0


@contextmanager
def join(runtime: Runtime, *, replicate: int, rank: int, local_rank: int, ranks: int) -> Iterator[Gang]:
    """Join the gang that torchrun's environment describes, and leave it at the end.

    Raises:
        UserError: the gang has another size than was asked for, or this machine lacks a device.
    """
    if ranks != runtime.ranks:
        raise UserError(
            f"world size: got {ranks}, asked for {runtime.nodes} nodes x {runtime.nproc} processes = {runtime.ranks}"
        )
    device = _device(runtime, local_rank)
    dist.init_process_group(runtime.backend, timeout=_JOIN, device_id=device if device.type == "cuda" else None)
    try:
        yield Gang(
            rank=rank,
            ranks=ranks,
            device=device,
            mesh=_mesh(device, ranks, replicate),
            control=dist.new_group(backend="gloo", timeout=_JOIN),
            checkpoints=dist.new_group(backend="gloo", timeout=_SAVE),
        )
    finally:
        dist.destroy_process_group()


def _mesh(device: torch.device, ranks: int, replicate: int) -> DeviceMesh:
    if replicate == 1:
        return init_device_mesh(device.type, (ranks,), mesh_dim_names=("shard",))
    return init_device_mesh(device.type, (replicate, ranks // replicate), mesh_dim_names=("replicate", "shard"))


def _device(runtime: Runtime, local_rank: int) -> torch.device:
    if runtime.device == "cpu":
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if found < runtime.nproc:
        raise UserError(f"TRIPOD_NPROC: got {runtime.nproc}, this machine has {found} CUDA devices")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
