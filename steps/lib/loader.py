"""Samples of a dataset, for any number of ranks, from byte ranges of its shards.

A split is one stream of tokens, shard after shard. Sample i is tokens [i * L, i * L + L + 1) of it:
inputs and targets of L tokens, one token shared with the next sample. What is over at the end is
`leftover_tokens`. Step s trains on positions [s * G, (s + 1) * G) of the order (order.py); rank r of
R takes the r-th part of them. So the position alone is the loader's state, at any number of ranks.

    L   sequence_length: tokens of a sample, without the one more
    G   global_batch: samples of a step          R   ranks
    n   samples                                  t   tokens
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from steps.lib.errors import UserError
from steps.lib.folder import File, load
from steps.lib.order import Int64s, Order, Window
from steps.lib.store import Store

BLOCK_BYTES = 512 << 10
_WINDOWS_AHEAD = 2
Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


class Loader:
    """Reads one split of a dataset. Safe to use from several threads.

    Args:
        prefix: a folder of kind `dataset`.
        sequence_length: L.
        seed: another seed, another order.
        window_mib: samples are mixed within windows of about so many MiB of tokens; memory is
            about four windows.

    Raises:
        UserError: no such dataset, or no such split in it.
    """

    def __init__(
        self, store: Store, prefix: str, *, sequence_length: int, seed: int, window_mib: float, split: str = "train"
    ):
        self.manifest = load(store, prefix, kind="dataset")
        self.prefix, self.split, self.sequence_length = prefix, split, sequence_length
        self._store = store
        self._shards = [file for file in self.manifest.files if file.meta["split"] == split]
        self._dtype = np.dtype(self.manifest.meta["dtype"]).newbyteorder("<")
        self._starts = np.cumsum([0, *(shard.meta["num_tokens"] for shard in self._shards)])
        self.num_tokens = int(self._starts[-1])
        if not self._shards:
            raise UserError(f"{prefix}: holds no tokens of split {split!r}")
        self.num_samples = max(self.num_tokens - 1, 0) // sequence_length
        """Samples of an epoch."""
        self.leftover_tokens = self.num_tokens - self.num_samples * sequence_length - 1
        """Tokens at the end that are in no sample."""
        block_samples = max(1, BLOCK_BYTES // (sequence_length * self._dtype.itemsize))
        block_bytes = block_samples * sequence_length * self._dtype.itemsize
        self.order = Order(
            num_samples=self.num_samples,
            block_samples=block_samples,
            window_blocks=max(1, round(window_mib * (1 << 20) / block_bytes)),
            seed=seed,
        )

    def ids(self, position: int, count: int) -> Int64s:
        """[count]: which samples stand at `position` and after; positions run on over the epochs.

        Raises:
            UserError: the split has no whole sample.
        """
        self._check(1)
        return self.order.ids(position, count)

    def read(self, ids: Sequence[int] | Int64s) -> Int64s:
        """[n, L + 1]: the tokens of samples, in the order of `ids`."""
        length = self.sequence_length
        parts = self._tokens([(int(i) * length, length + 1) for i in ids])
        return np.array(parts, np.int64).reshape(len(parts), length + 1)

    def rank_batches(
        self, *, start_step: int, global_batch: int, rank: int, ranks: int
    ) -> Iterator[tuple[Int64s, Int64s]]:
        """For each step from `start_step`, without end: ids [G / R] and tokens [G / R, L + 1] of this rank.

        Reads ahead in a thread, which ends when the iterator is closed. A failed read is raised here.

        Raises:
            UserError: R does not divide G, or the split has fewer than G samples.
        """
        if global_batch % ranks:
            raise UserError(f"global_batch: got {global_batch}, allowed are multiples of the {ranks} ranks")
        self._check(global_batch)
        return self._batches(start_step, global_batch, rank * (global_batch // ranks), global_batch // ranks)

    def stream(self, block_tokens: int = 1 << 20) -> Iterator[Tokens]:
        """All tokens of the split once, in order, in arrays of at most `block_tokens`.

        A document ends at each end-of-text id (`manifest.meta["eos_id"]`) and nowhere else.
        """
        for start in range(0, self.num_tokens, block_tokens):
            yield self._tokens([(start, min(block_tokens, self.num_tokens - start))])[0]

    def _check(self, samples: int) -> None:
        if self.num_samples < samples:
            raise UserError(
                f"{self.prefix}: {self.split} has {self.num_samples} samples of {self.sequence_length} tokens, "
                f"{samples} are needed; use more text, a shorter sequence_length or a smaller global_batch"
            )

    def _batches(self, step: int, global_batch: int, offset: int, count: int) -> Iterator[tuple[Int64s, Int64s]]:
        def is_wanted(window: Window) -> bool:
            """Whether a position of this rank lies in the window."""
            behind = (window.start - offset) % global_batch  # of the step's first position of this rank
            return behind < count or behind + len(window.ids) > global_batch

        wanted = filter(is_wanted, self.order.windows(step * global_batch + offset))
        with closing(self._loaded(wanted)) as windows:
            window = next(windows)
            while True:
                ids = np.empty(count, np.int64)
                tokens = np.empty((count, self.sequence_length + 1), np.int64)
                for row in range(count):
                    position = step * global_batch + offset + row
                    while position >= window.start + len(window.ids):
                        window = next(windows)
                    ids[row] = window.ids[position - window.start]
                    tokens[row] = window.tokens_of(ids[row])
                yield ids, tokens
                step += 1

    def _loaded(self, windows: Iterator[Window]) -> Generator["_LoadedWindow", None, None]:
        """The windows as one thread reads them, _WINDOWS_AHEAD before they are asked for."""
        with ThreadPoolExecutor(1, thread_name_prefix="loader") as pool:
            try:
                ahead = deque(pool.submit(lambda: self._read_window(next(windows))) for _ in range(_WINDOWS_AHEAD))
                while True:
                    window = ahead.popleft().result()
                    ahead.append(pool.submit(lambda: self._read_window(next(windows))))
                    yield window
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _read_window(self, window: Window) -> "_LoadedWindow":
        length = self.sequence_length
        ranges = [self.order.block_range(int(block)) for block in window.blocks]
        parts = self._tokens([(first * length, (stop - first) * length + 1) for first, stop in ranges])
        blocks = {int(block): tokens for block, tokens in zip(window.blocks, parts, strict=True)}
        return _LoadedWindow(window.start, window.ids, blocks, self.order.block_samples, length)

    def _tokens(self, ranges: Sequence[tuple[int, int]]) -> list[Tokens]:
        """Tokens [start, start + count) of the stream for each (start, count)."""
        pieces: list[list[tuple[int, int]]] = []  # for each range: (shard, index among its reads)
        reads: dict[int, list[tuple[int, int]]] = {}  # for each shard: byte ranges
        for start, count in ranges:
            pieces.append([])
            for shard, low, high in self._spans(start, start + count):
                wanted = reads.setdefault(shard, [])
                pieces[-1].append((shard, len(wanted)))
                wanted.append(self._bytes(self._shards[shard], low, high))
        got = {shard: self._store.read_ranges(self._shards[shard].key, wanted) for shard, wanted in reads.items()}
        arrays = [[np.frombuffer(got[shard][i], self._dtype) for shard, i in piece] for piece in pieces]
        return [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in arrays]

    def _spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(shard, first token in it, one past the last) that together are tokens [start, stop) of the stream."""
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            begin, end = int(self._starts[shard]), int(self._starts[shard + 1])
            if end > start:
                yield shard, start - begin, min(stop, end) - begin
            start, shard = max(start, end), shard + 1

    def _bytes(self, shard: File, low: int, high: int) -> tuple[int, int]:
        size = self._dtype.itemsize
        return int(shard.meta["values_offset"]) + low * size, (high - low) * size


@dataclass(frozen=True)
class _LoadedWindow:
    start: int
    ids: Int64s
    blocks: dict[int, Tokens]
    """Block number -> its tokens and one more, as they were read."""
    block_samples: int
    length: int

    def tokens_of(self, sample: int) -> Tokens:
        """[L + 1]"""
        block, inside = divmod(int(sample), self.block_samples)
        return self.blocks[block][inside * self.length : (inside + 1) * self.length + 1]
