"""One small message a step: the ranks agree when to stop, and rank 0 learns what to log.

Every rank adds a float64 vector; the sum is read one step later, so nobody waits for it.

    [0] how many ranks were told to stop      [2] summed loss      [4:] sample ids of the global batch,
    [1] how many ranks lack data              [3] target tokens         each rank at its own positions
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

_HEAD = 4


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """What all ranks know of one step, the same on each."""

    stop: bool
    """Some rank was told to stop."""
    waits: bool
    """Some rank has no batch for the step after next."""
    loss: float
    """Nats a token over the global batch."""
    tokens: int
    ids: tuple[int, ...]
    """Sample ids of the global batch in order of position."""


class Control:
    """The message of this gang.

    Args:
        group: a gloo group that nothing else uses.
        global_batch: sequences a step.
    """

    def __init__(self, group: dist.ProcessGroup, *, rank: int, ranks: int, global_batch: int):
        self.group = group
        self.size = _HEAD + global_batch
        own = global_batch // ranks
        self.place = slice(_HEAD + rank * own, _HEAD + (rank + 1) * own)
        self.pending: deque[tuple[torch.Tensor, dist.Work]] = deque()

    def send(self, *, stop: bool, waits: bool, loss_sum: float, tokens: int, ids: npt.NDArray[np.int64]) -> None:
        """Start the message of a step. `ids`: this rank's sample ids, [global_batch / ranks]."""
        message = torch.zeros(self.size, dtype=torch.float64)  # integers up to 2**53 are exact
        message[:_HEAD] = torch.tensor([stop, waits, loss_sum, tokens], dtype=torch.float64)
        message[self.place] = torch.from_numpy(ids)
        work = dist.all_reduce(message, group=self.group, async_op=True)
        assert work is not None
        self.pending.append((message, work))

    def receive(self, *, leave: int) -> list[Agreed]:
        """Wait for all messages but the newest `leave`, in order of their steps."""
        agreed = []
        while len(self.pending) > leave:
            message, work = self.pending.popleft()
            work.wait()
            stop, waits, loss_sum, tokens, *ids = message.tolist()
            agreed.append(
                Agreed(
                    stop=stop > 0, waits=waits > 0, loss=loss_sum / tokens, tokens=int(tokens), ids=tuple(map(int, ids))
                )
            )
        return agreed

    def ask(self, *, stop: bool, waits: bool) -> tuple[bool, bool]:
        """Between two steps: whether any rank was told to stop, and whether any still lacks data."""
        assert not self.pending
        message = torch.tensor([stop, waits], dtype=torch.float64)
        dist.all_reduce(message, group=self.group)
        return bool(message[0] > 0), bool(message[1] > 0)
