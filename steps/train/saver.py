"""Saving while training goes on: one save in flight, committed by its manifest, failures counted.

loop thread   settle the save before -> copy the state (stage.py) -> go on
save thread   DCP over a gloo group of its own: plan, upload, metrics part, manifest, prune

While the store is away the save thread holds the copy and tries again: training goes on until the next
save is due, and waits then, outside of every collective. Only what is no passing trouble counts as failed.
"""

import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import save

from steps.lib.checkpoint import CheckpointMeta, prefix_of, prune
from steps.lib.dcp import StoreWriter
from steps.lib.errors import TemporaryError, TripodError
from steps.lib.store import Store
from steps.train.gang import Gang
from steps.train.stage import Stage

POLL_S = 2.0
"""Between two tries of a save that waits for the store."""


@dataclass(frozen=True, kw_only=True)
class _Flight:
    meta: CheckpointMeta
    done: "Future[str]"
    """Why the save failed, "" when it is committed; the same on every rank."""


class Saver:
    """Saves of one training.

    Args:
        base: checkpoints/<train-key>.
        max_failed: so many saves in a row may fail.
        wait_s: how long a store that is away is waited for before that counts as a failure.
        should_stop: whether this process was told to stop; then nothing is waited for.
        committed: called on every rank, in the loop's thread, with the meta of each committed save.
    """

    def __init__(
        self,
        store: Store,
        base: str,
        gang: Gang,
        *,
        keep: int,
        max_failed: int,
        wait_s: float,
        should_stop: Callable[[], bool],
        committed: Callable[[CheckpointMeta], None],
    ):
        self.store = store
        self.base = base
        self.gang = gang
        self.keep = keep
        self.max_failed = max_failed
        self.wait_s = wait_s
        self.should_stop = should_stop
        self.committed = committed
        self.away_since = math.inf
        """By the monotonic clock; set at the first try that found the store away since it last answered."""
        self.failed_in_a_row = 0
        self.saved_step = -1
        self.stage: Stage | None = None
        self.flight: _Flight | None = None
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="save")

    @property
    def waits(self) -> bool:
        """Whether the save in flight waits for the store."""
        return self.flight is not None and not self.flight.done.done() and self.away_since < math.inf

    def prepare(self, state: dict[str, Tensor]) -> None:
        """Make room for copies of `state`."""
        self.stage = Stage(state)

    def start(self, state: dict[str, Tensor], meta: CheckpointMeta, part: tuple[str, bytes] | None) -> float:
        """Copy the state and begin to save it; first waits for the save before.

        Args:
            part: key and content of the metrics part to write before the commit (rank 0).

        Returns:
            Seconds for which the loop stood still.

        Raises:
            TemporaryError: too many saves in a row have failed.
        """
        started = time.perf_counter()
        self.settle()
        if self.stage is None:
            self.prepare(state)
        assert self.stage is not None
        staged = self.stage.take(state)
        self.flight = _Flight(meta=meta, done=self.thread.submit(self._save, staged, meta, part))
        return time.perf_counter() - started

    def settle(self) -> None:
        """Wait for the save in flight, if there is one, and count how it ended.

        Raises:
            TemporaryError: too many saves in a row have failed.
        """
        if self.flight is None:
            return
        flight, self.flight = self.flight, None
        problem = flight.done.result()
        if not problem:
            self.failed_in_a_row = 0
            self.saved_step = flight.meta.step
            self.committed(flight.meta)
            return
        self.failed_in_a_row += 1
        told = f"checkpoint {prefix_of(self.base, flight.meta.step)} was not saved: {problem}"
        if self.failed_in_a_row > self.max_failed:
            raise TemporaryError(f"{told}; {self.failed_in_a_row} saves in a row failed, allowed are {self.max_failed}")
        if self.gang.is_first:
            print(f"warning: {told}", file=sys.stderr, flush=True)

    def _save(self, staged: dict[str, Tensor], meta: CheckpointMeta, part: tuple[str, bytes] | None) -> str:
        assert self.stage is not None
        self.stage.wait()
        while True:
            try:
                self._try(staged, meta, part)
                break
            except CheckpointException as e:
                problem = describe(e)
                if not _is_temporary(e):  # the store has answered
                    self.away_since = math.inf
                    return problem
                if not self._agree_to_wait(meta.step, problem):
                    return problem
            time.sleep(POLL_S)
        self.away_since = math.inf
        if self.gang.is_first:
            self._prune(meta.step)
        return ""

    def _try(self, staged: dict[str, Tensor], meta: CheckpointMeta, part: tuple[str, bytes] | None) -> None:
        writer = StoreWriter(
            self.store,
            prefix_of(self.base, meta.step),
            meta,
            before_commit=lambda: self._put(part),
        )
        save(
            staged,
            storage_writer=writer,
            planner=DefaultSavePlanner(flatten_state_dict=False),
            process_group=self.gang.checkpoints,
        )

    def _agree_to_wait(self, step: int, problem: str) -> bool:
        """Whether to try again, on every rank the same: not when one has waited long enough or was told to stop."""
        now = time.monotonic()
        if self.away_since == math.inf:
            self.away_since = now
            if self.gang.is_first:
                print(
                    f"warning: {prefix_of(self.base, step)} waits for the store: {problem}", file=sys.stderr, flush=True
                )
        leaves = torch.tensor(int(self.should_stop() or now - self.away_since >= self.wait_s))
        dist.all_reduce(leaves, dist.ReduceOp.MAX, group=self.gang.checkpoints)
        return not leaves.item()

    def _put(self, part: tuple[str, bytes] | None) -> None:
        if part:
            self.store.put(*part)

    def _prune(self, newest: int) -> None:
        try:
            prune(self.store, self.base, newest=newest, keep=self.keep)
        except TripodError as e:  # the next save tries again
            print(f"warning: old checkpoints were not removed: {e}", file=sys.stderr, flush=True)


def _is_temporary(error: CheckpointException) -> bool:
    return all(isinstance(cause, TemporaryError) for cause, _ in error.failures.values())


def describe(error: CheckpointException) -> str:
    """Why a collective save or load failed, by the first rank that says so.

    Raises:
        BaseException: what a rank raised, when it is neither ours nor the operating system's: a bug.
    """
    rank, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
    if not isinstance(cause, TripodError | OSError):
        raise cause
    return f"rank {rank}: {cause}"
