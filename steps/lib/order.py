"""In which order samples are read: a function of seed, epoch and sizes alone.

Samples lie in the file in blocks (about half a MiB, one range to read). Every epoch permutes the
blocks, takes them in windows of several, and permutes the samples inside a window:

    blocks on disk    0 1 2 3 4 5 6 7 ...
    epoch 0           [5 0 7] [2 6 1] [3 4 ...]     windows of 3 blocks
    window 0          samples of blocks 5, 0 and 7, mixed

so that reading is sequential within a block and memory holds a few windows. Permutations sort by
a hash of our own (splitmix64): no library's random stream decides what a model is trained on.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class Window:
    """Samples that are read together."""

    start: int
    """Position of the first, counted over all epochs."""
    blocks: Int64s
    """[b]: the blocks that hold them, in reading order."""
    ids: Int64s
    """[n]: the samples, by position."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Positions 0, 1, 2, ... run over the samples of epoch 0, then of epoch 1, and so on."""

    num_samples: int
    block_samples: int
    """Samples of a block; the last block on disk may have fewer."""
    window_blocks: int
    seed: int

    def ids(self, position: int, count: int) -> Int64s:
        """[count]: the samples at `position` and after."""
        parts = [np.empty(0, np.int64)]
        for window in self.windows(position):
            if count == 0:
                break
            skip = max(position - window.start, 0)
            part = window.ids[skip : skip + count]
            parts.append(part)
            count -= len(part)
        return np.concatenate(parts)

    def windows(self, position: int) -> Iterator[Window]:
        """The window that holds `position`, and all after it, without end."""
        epoch, inside = divmod(position, self.num_samples)
        starts = _epoch(self, epoch)[1]
        number = int(np.searchsorted(starts, inside, side="right")) - 1
        while True:
            blocks, starts = _epoch(self, epoch)
            for i in range(number, len(starts) - 1):
                yield self._window(epoch, i, blocks, int(starts[i]))
            epoch, number = epoch + 1, 0

    def block_range(self, block: int) -> tuple[int, int]:
        """First sample of a block, and one past its last."""
        first = block * self.block_samples
        return first, min(first + self.block_samples, self.num_samples)

    def _window(self, epoch: int, number: int, blocks: Int64s, start: int) -> Window:
        chosen = blocks[number * self.window_blocks : (number + 1) * self.window_blocks]
        ids = np.concatenate([np.arange(*self.block_range(int(block))) for block in chosen])
        mixed = ids[np.argsort(_hashes(ids, self.seed, epoch, 1), kind="stable")]
        return Window(start=epoch * self.num_samples + start, blocks=chosen, ids=mixed)


@lru_cache(maxsize=4)
def _epoch(order: Order, epoch: int) -> tuple[Int64s, Int64s]:
    """The blocks of an epoch in reading order, and [windows + 1] where in the epoch each window starts."""
    num_blocks = -(-order.num_samples // order.block_samples)
    numbers = np.arange(num_blocks)
    blocks = numbers[np.argsort(_hashes(numbers, order.seed, epoch, 0), kind="stable")]
    sizes = np.full(num_blocks, order.block_samples)
    sizes[blocks == num_blocks - 1] = order.num_samples - (num_blocks - 1) * order.block_samples
    ends = np.cumsum(sizes)[order.window_blocks - 1 :: order.window_blocks]
    starts = np.concatenate([[0], ends, *([[order.num_samples]] if num_blocks % order.window_blocks else [])])
    return blocks, starts.astype(np.int64)


def _hashes(numbers: Int64s, seed: int, epoch: int, stream: int) -> npt.NDArray[np.uint64]:
    """64 hashed bits for each number; another seed, epoch or stream gives others."""
    key = 0
    for part in (seed, epoch, stream):
        key = int(_mix(np.array([(key ^ part) & _MASK], np.uint64))[0])
    return _mix(numbers.astype(np.uint64) ^ np.uint64(key))


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64: Steele, Lea, Flood, Fast splittable pseudorandom number generators, 2014."""
    x = x + np.uint64(_GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
