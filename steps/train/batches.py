"""This rank's batches, two steps ahead, and what happens when the store is away.

A failed read is not an error yet: the rank says in its message of the step (control.py) that it lacks
data, and before the step in question all ranks stop, outside of any collective of the training, and
ask again until everyone has data.

Legend: G sequences of the global batch, R ranks, L sequence length.
"""

from collections import deque
from collections.abc import Generator
from typing import cast

import numpy as np
import numpy.typing as npt

from steps.lib.errors import TemporaryError
from steps.lib.loader import Loader

Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Sample ids [G / R] and tokens [G / R, L + 1]."""

AHEAD = 2
"""A message is read one step after it is sent, so what it says must hold for the step after that."""


class Batches:
    """The batches of one rank for the steps [start_step, stop_step)."""

    def __init__(self, loader: Loader, *, start_step: int, stop_step: int, global_batch: int, rank: int, ranks: int):
        self.loader = loader
        self.next_step = start_step
        self.stop_step = stop_step
        self.global_batch = global_batch
        self.rank = rank
        self.ranks = ranks
        self.ready: deque[Batch] = deque()
        self.problem = ""
        """Why the last read failed; "" when it did not."""
        self.source = self._open()

    def fill(self) -> bool:
        """Hold `AHEAD` batches ready; False when the store did not give them (`problem` says why)."""
        while len(self.ready) < AHEAD and self.next_step < self.stop_step:
            try:
                self.ready.append(next(self.source))
            except TemporaryError as e:
                self.problem = str(e)
                self.source = self._open()
                return False
            self.next_step += 1
        self.problem = ""
        return True

    def take(self) -> Batch:
        """The next step's batch."""
        return self.ready.popleft()

    def close(self) -> None:
        """Stop reading ahead."""
        self.source.close()

    def _open(self) -> Generator[Batch, None, None]:
        batches = self.loader.rank_batches(
            start_step=self.next_step, global_batch=self.global_batch, rank=self.rank, ranks=self.ranks
        )
        return cast("Generator[Batch, None, None]", batches)  # an iterator that can be closed
