"""The loop: batches in, losses out, checkpoints between, until the last step or until told to stop.

Legend: G sequences of the global batch, R ranks, L sequence length.
"""

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from steps.lib.checkpoint import CheckpointMeta
from steps.lib.errors import RejectedError, TemporaryError
from steps.lib.loader import Loader
from steps.train import RECENT_STEPS, state as training_state
from steps.train.batches import Batches
from steps.train.control import Agreed, Control
from steps.train.gang import Gang
from steps.train.job import Job
from steps.train.metrics import Line, MetricsLog
from steps.train.model import TrainedLlama, sync_gradients
from steps.train.optimizer import clip_gradients, is_usable, set_learning_rate
from steps.train.progress import Phase, Progress
from steps.train.saver import Saver
from steps.train.schedule import learning_rate

MAX_SKIPPED_IN_A_ROW = 20
"""So many steps in a row without finite gradients mean that the model is lost."""
POLL_S = 2.0


@dataclass(kw_only=True)
class Training:
    """What changes from step to step."""

    net: TrainedLlama
    parameters: dict[str, DTensor]
    optimizer: AdamW
    step: int = 0
    """Steps done."""
    applied: int = 0
    """Steps whose update was applied."""
    recent: deque[float | None] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Losses of the last steps, None where not finite."""


@dataclass(frozen=True, kw_only=True)
class _Done:
    """What this rank knows of a step before the gang has agreed on it."""

    step: int
    lr: float
    grad_norm: float
    seconds: float


class Loop:
    """Trains to the last step.

    Args:
        should_stop: whether this process was told to stop.
        log: of the trajectory; written on rank 0 alone.
    """

    def __init__(
        self,
        job: Job,
        gang: Gang,
        training: Training,
        *,
        loader: Loader,
        saver: Saver,
        log: MetricsLog,
        progress: Progress,
        should_stop: Callable[[], bool],
    ):
        self.config = job.params.train
        self.job = job
        self.gang = gang
        self.training = training
        self.batches = Batches(
            loader,
            start_step=training.step,
            stop_step=self.config.steps,
            global_batch=self.config.global_batch,
            rank=gang.rank,
            ranks=gang.ranks,
        )
        self.saver = saver
        self.log = log
        self.progress = progress
        self.should_stop = should_stop
        self.control = Control(gang.control, rank=gang.rank, ranks=gang.ranks, global_batch=self.config.global_batch)
        self.done: deque[_Done] = deque()
        self.stopping = False
        self.someone_waits = not self.batches.fill()
        self.skipped_in_a_row = 0
        self.step_began = time.perf_counter()

    def run(self) -> bool:
        """Train. The state as it is at the end is saved and committed.

        Returns:
            True at the last step, False when told to stop before.

        Raises:
            RejectedError: the model diverged.
            TemporaryError: the state could not be saved.
        """
        self.saver.prepare(self._state())
        with closing(self.batches):
            self._wait_for_data()
            self.step_began = time.perf_counter()
            while self.training.step < self.config.steps and not self.stopping:
                self._step(*self.batches.take())
                self._hear(leave=1)
                if self.someone_waits:
                    self._wait_for_data()
                if self.training.step % self.config.checkpoint_every_steps == 0 and not self.stopping:
                    self._save("checkpointing")
        finished = self.training.step == self.config.steps
        self._save_last("checkpointing" if finished else "draining")
        return finished

    def _step(self, ids: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        """One optimizer step on this rank's part of the batch: ids [G / R], tokens [G / R, L + 1]."""
        t = self.training
        lr = learning_rate(t.step + 1, self.config)
        loss_sum = self._backward(torch.from_numpy(tokens))
        norm = clip_gradients(t.parameters, self.config.clip_norm)
        if is_usable(norm):
            set_learning_rate(t.optimizer, lr)
            t.optimizer.step()
            t.applied += 1
        t.optimizer.zero_grad()
        t.step += 1
        self._count_skipped(norm)
        self.control.send(
            stop=self.should_stop(),
            waits=not self.batches.fill(),
            loss_sum=float(loss_sum),
            tokens=tokens[:, 1:].size,
            ids=ids,
        )
        now = time.perf_counter()
        self.done.append(_Done(step=t.step, lr=lr, grad_norm=norm, seconds=now - self.step_began))
        self.step_began = now

    def _backward(self, tokens: Tensor) -> Tensor:
        """Accumulate gradients of the mean loss over the global batch; returns the summed loss, float32."""
        targets = tokens[:, 1:].numel()  # of this rank; FSDP divides by the number of ranks
        micros = torch.split(tokens, self.config.micro_batch)
        total = torch.zeros((), device=self.gang.device)
        for i, micro in enumerate(micros):
            sync_gradients(self.training.net, i == len(micros) - 1)
            loss = self.training.net(micro.to(self.gang.device, non_blocking=True))
            (loss / targets).backward()
            total += loss.detach()
        return total

    def _wait_for_data(self) -> None:
        """All ranks together, outside of the training's collectives, until each has its next batches.

        Raises:
            TemporaryError: that took longer than Runtime.store_wait_s.
        """
        self._hear(leave=0)
        wait_s = self.job.runtime.store_wait_s
        told, deadline = False, time.monotonic() + wait_s
        while not self.stopping:
            has_data = self.batches.fill()
            self.stopping, self.someone_waits = self.control.ask(stop=self.should_stop(), waits=not has_data)
            if not self.someone_waits:
                return
            if time.monotonic() > deadline:
                raise TemporaryError(f"no data for {wait_s} s: {self.batches.problem or 'another rank lacks it'}")
            if not has_data and not told:
                print(f"warning: rank {self.gang.rank} waits: {self.batches.problem}", file=sys.stderr, flush=True)
                told = True
            self.progress.phase("waiting")
            time.sleep(POLL_S)

    def _count_skipped(self, norm: float) -> None:
        self.skipped_in_a_row = 0 if is_usable(norm) else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise RejectedError(
                f"step {self.training.step}: gradients were not finite in {self.skipped_in_a_row} steps in a row; "
                "lower learning_rate, or raise warmup_steps"
            )

    def _hear(self, *, leave: int) -> None:
        """Take in what the gang agreed on, for all steps but the newest `leave`."""
        for agreed in self.control.receive(leave=leave):
            done = self.done.popleft()
            self.training.recent.append(agreed.loss if math.isfinite(agreed.loss) else None)
            self.stopping = self.stopping or agreed.stop
            self.someone_waits = agreed.waits
            if self.gang.is_first:
                self.log.add(_line(done, agreed))
            self.progress.tell(step=done.step, loss=agreed.loss, lr=done.lr, tokens=agreed.tokens)

    def _save(self, phase: Phase) -> None:
        """Begin to save the state after the newest step."""
        self._hear(leave=0)
        if self.saver.waits:
            self.progress.phase("waiting")
        self.saver.settle()  # the save before may have added a part to the log
        part = self.log.next_part()
        self.saver.start(self._state(), self._meta(part), part)
        self.progress.phase(phase)

    def _state(self) -> dict[str, Tensor]:
        state = training_state.tensors(self.training.parameters, self.training.optimizer)
        state[training_state.rng_name(self.gang.rank)] = training_state.pack_rng(self.gang.device)
        return state

    def _save_last(self, phase: Phase) -> None:
        """Save until it is committed, or until too many saves have failed."""
        self._hear(leave=0)
        self.saver.settle()
        while self.saver.saved_step != self.training.step:
            self._save(phase)
            self.saver.settle()

    def _meta(self, part: tuple[str, bytes] | None) -> CheckpointMeta:
        t, params = self.training, self.job.params
        return CheckpointMeta(
            step=t.step,
            model=params.model,
            train=params.train.model_dump(mode="json"),
            dataset=params.dataset,
            eos_id=self.job.eos_id,
            world_size=self.gang.ranks,
            samples=t.step * self.config.global_batch,
            optimizer_steps=t.applied,
            recent_losses=tuple(t.recent),
            metrics=(*self.log.parts, *([part[0]] if part else [])),
        )


def _line(done: _Done, agreed: Agreed) -> Line:
    return Line(
        step=done.step,
        loss=agreed.loss if math.isfinite(agreed.loss) else None,
        lr=done.lr,
        grad_norm=done.grad_norm if is_usable(done.grad_norm) else None,
        tokens=agreed.tokens,
        skipped=not is_usable(done.grad_norm),
        seconds=round(done.seconds, 6),
        ids=agreed.ids,
    )
