"""A copy of the state in host memory, taken between two steps and written while training goes on.

One buffer is allocated and touched at set-up (pinned when the state is on a GPU). The tensors lie in it
back to back, in the order of the object that the writer uploads, so nothing is copied twice.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class Stage:
    """The buffer for one rank's part of the state.

    Args:
        state: tensors of the sizes that every later `take` will bring.
    """

    def __init__(self, state: dict[str, Tensor]):
        total = sum(_local(tensor).nbytes for tensor in state.values())
        self.on_gpu = any(_local(tensor).is_cuda for tensor in state.values())
        self.buffer = torch.empty(total, dtype=torch.uint8, pin_memory=self.on_gpu)
        self.buffer.zero_()  # page faults now, not in the first save
        self.copied: torch.cuda.Event | None = None

    def take(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """`state` on the CPU, as it is now. On a GPU the copy is only queued: `wait` before reading."""
        staged = {}
        start = 0
        for name, tensor in state.items():
            local = _local(tensor)
            place = self.buffer[start : start + local.nbytes].view(local.dtype).view(local.shape)
            place.copy_(local, non_blocking=True)
            staged[name] = _like(tensor, place)
            start += local.nbytes
        if self.on_gpu:
            self.copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.copied.record()
        return staged

    def wait(self) -> None:
        """Until the copy is complete."""
        if self.copied is not None:
            self.copied.synchronize()


def _local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _like(tensor: Tensor, local: Tensor) -> Tensor:
    """`local` sharded as `tensor` is. from_local() would move it to the mesh's device."""
    if isinstance(tensor, DTensor):
        return DTensor(local, tensor._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return local
