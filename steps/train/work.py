"""A worker's work from set-up to the last save."""

import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch

from steps.lib import checkpoint
from steps.lib.errors import PreemptedError
from steps.lib.llama import num_parameters
from steps.lib.loader import Loader
from steps.lib.store import Store, open_store
from steps.train import RECENT_STEPS
from steps.train.gang import Gang, join
from steps.train.job import Job
from steps.train.loop import Loop, Training
from steps.train.metrics import MetricsLog
from steps.train.model import build_sharded, initialise, parameters_by_name
from steps.train.optimizer import make_optimizer
from steps.train.progress import Progress
from steps.train.resume import restore
from steps.train.saver import Saver
from steps.train.state import seed_rng


def work(job_file: Path, should_stop: Callable[[], bool]) -> None:
    """Train as the rank that the environment names.

    Raises:
        PreemptedError: told to stop; the state is saved.
        TripodError: whatever else ended the work.
    """
    job = Job.model_validate_json(job_file.read_text())
    torch.set_num_threads(job.runtime.threads)
    if job.params.train.deterministic:
        torch.use_deterministic_algorithms(True)
    with join(
        job.runtime,
        replicate=job.params.train.replicate,
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        ranks=int(os.environ["WORLD_SIZE"]),
    ) as gang:
        store = open_store(job.store_uri)
        loop = set_up(job, store, gang, should_stop)
        if not loop.run():
            prefix = checkpoint.prefix_of(job.base, loop.training.step)
            raise PreemptedError(
                f"stopped at step {loop.training.step} of {job.params.train.steps}; saved {prefix}; "
                "run the same command to go on"
            )


def set_up(job: Job, store: Store, gang: Gang, should_stop: Callable[[], bool]) -> Loop:
    """Model, optimizer, position and generators as the newest whole checkpoint has them, or as the seed says."""
    model, train = job.params.model, job.params.train
    seed_rng(train.seed, 0, gang.rank)
    net = build_sharded(model, train, gang, job.eos_id)
    net.train()
    parameters = parameters_by_name(net)
    optimizer = make_optimizer(parameters, train)
    training = Training(net=net, parameters=parameters, optimizer=optimizer)
    meta = restore(store, job.base, gang, parameters, optimizer, seed=train.seed)
    if meta is None:
        initialise(net, train.seed)
    else:
        training.step, training.applied = meta.step, meta.optimizer_steps
        training.recent = deque(meta.recent_losses, maxlen=RECENT_STEPS)
    log = MetricsLog(job.base, meta.metrics if meta else ())
    saver = Saver(
        store,
        job.base,
        gang,
        keep=train.keep_checkpoints,
        max_failed=train.max_failed_saves,
        wait_s=job.runtime.store_wait_s,
        should_stop=should_stop,
        committed=lambda saved: log.committed(saved.metrics, saved.step),
    )
    saver.saved_step = training.step if meta else -1
    loader = _loader(job, store)
    if gang.is_first:
        _tell_start(job, gang, loader, training.step)
    return Loop(
        job,
        gang,
        training,
        loader=loader,
        saver=saver,
        log=log,
        progress=_progress(job, gang, training.step),
        should_stop=should_stop,
    )


def _tell_start(job: Job, gang: Gang, loader: Loader, step: int) -> None:
    begin = f"{checkpoint.prefix_of(job.base, step)}" if step else "the seed"
    print(
        f"train: {num_parameters(job.params.model)} parameters on {gang.ranks} {job.runtime.device} ranks, from {begin}; "
        f"an epoch is {loader.num_samples} samples, {loader.leftover_tokens} tokens are left over",
        file=sys.stderr,
        flush=True,
    )


def _loader(job: Job, store: Store) -> Loader:
    return Loader(
        store,
        job.params.dataset,
        sequence_length=job.params.model.sequence_length,
        seed=job.params.train.seed,
        window_mib=job.params.train.shuffle_window_mib,
    )


def _progress(job: Job, gang: Gang, start_step: int) -> Progress:
    return Progress(
        start_step=start_step,
        steps=job.params.train.steps,
        num_parameters=num_parameters(job.params.model),
        peak_flops=job.runtime.peak_tflops * 1e12 * gang.ranks,
        on=gang.is_first,
    )
