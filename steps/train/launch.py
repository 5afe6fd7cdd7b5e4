"""torchrun's elastic agent in this process, around the workers of this machine.

    SIGTERM, SIGINT -> every worker (they agree on a step, save, leave) -> after the grace period SIGKILL
    outcome         <- the files that the workers leave (outcome.py), never torchrun's exit code

Torch's own handlers would kill the workers after 30 s whatever the grace is, so it gets a signal to
handle that nobody sends.
"""

import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from steps.contract import Context
from steps.lib import checkpoint
from steps.lib.errors import Exit, PreemptedError, TemporaryError, TripodError
from steps.lib.lease import Lease
from steps.lib.store import Store
from steps.train.job import Job
from steps.train.outcome import Mailbox, raise_outcome, read_outcomes
from steps.train.runtime import Runtime

_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc, mallopt(3): a step's large tensors stay with the process; given back, each step would fault their pages in anew."""
_NAME_TIMEOUT_S = 120
"""How long the name of node 0 may take to appear in DNS (a headless Service is late)."""


def launch(job: Job, ctx: Context) -> None:
    """Run the workers of this machine to their end, as the one writer below `job.base`.

    Raises:
        HeldError: another run holds the lease.
        PreemptedError: told to stop; the message says which checkpoint is current.
        TripodError: whatever the workers say.
    """
    if job.runtime.node_rank:  # node 0 holds the lease for the gang
        return _run_workers(job, ctx, lambda: None)
    with Lease(ctx.store, f"{job.base}/lease.json", run_id=ctx.run_id, say=ctx.say) as lease:
        _run_workers(job, ctx, lease.check)


def _run_workers(job: Job, ctx: Context, still_ours: Callable[[], None]) -> None:
    folder = ctx.scratch
    job_file = folder / "job.json"
    job_file.write_text(job.model_dump_json())
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the outcome says it in one line
    failures: dict[int, ProcessFailure] = {}
    _await_name(job.runtime.master_addr)
    with _Stopping(Mailbox(folder), job.runtime.grace_s, still_ours) as stopping:
        try:
            elastic_launch(_config(job.runtime, folder), "/usr/bin/env")(*_command(job, job_file))
        except ChildFailedError as e:
            failures = e.failures
        except (RendezvousError, DistError) as e:
            raise TemporaryError(f"rendezvous at {job.runtime.master_addr or 'this machine'}: {e}") from e
    still_ours()
    _conclude(job, ctx.store, folder, failures, stopping)


def _command(job: Job, job_file: Path) -> list[str]:
    """env(1) sets what must be there before torch is imported, then becomes the worker."""
    variables = {"OMP_NUM_THREADS": str(job.runtime.threads), "TRIPOD_AGENT_PID": str(os.getpid())}
    if job.runtime.nodes == 1 and "GLOO_SOCKET_IFNAME" not in os.environ and sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # gloo would look this machine's name up
    if job.params.train.deterministic:
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if job.runtime.device == "cpu":
        variables |= {name: value for name, value in _KEEP_MEMORY.items() if name not in os.environ}
    settings = [f"{name}={value}" for name, value in variables.items()]
    return [*settings, sys.executable, "-m", "steps.train.worker", str(job_file)]


def _config(runtime: Runtime, folder: Path) -> LaunchConfig:
    rendezvous: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "127.0.0.1"}
    if runtime.master_addr:
        rendezvous = {
            "rdzv_backend": "static",
            "rdzv_endpoint": f"{runtime.master_addr}:{runtime.master_port}",
            "rdzv_configs": {"rank": runtime.node_rank},
        }
    return LaunchConfig(
        min_nodes=runtime.nodes,
        max_nodes=runtime.nodes,
        nproc_per_node=runtime.nproc,
        run_id=uuid.uuid4().hex if not runtime.master_addr else "tripod",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "torchrun")),
        signals_to_handle="SIGQUIT",
        shutdown_timeout=runtime.grace_s,
        **rendezvous,
    )


def _await_name(host: str, timeout_s: float = _NAME_TIMEOUT_S, poll_s: float = 1.0) -> None:
    """Until `host` has an address."""
    deadline = time.monotonic() + timeout_s
    while host:
        try:
            socket.getaddrinfo(host, None)
            return
        except socket.gaierror as e:
            if time.monotonic() > deadline:
                raise TemporaryError(f"PET_MASTER_ADDR: {host} has no address after {timeout_s:.0f} s") from e
            time.sleep(poll_s)


class _Stopping:
    """While torchrun's agent runs: passes signals on to the workers, ends them when the grace is over or
    when somebody else has taken our lease."""

    def __init__(self, mailbox: Mailbox, grace_s: int, still_ours: Callable[[], None]):
        self.mailbox = mailbox
        self.grace_s = grace_s
        self.still_ours = still_ours
        self.asked = False
        self.over = threading.Event()
        self.kill_at = math.inf
        self.watch = threading.Thread(target=self._watch, name="stopping", daemon=True)

    def __enter__(self) -> "_Stopping":
        self.before = {s: signal.signal(s, self._stop) for s in (signal.SIGTERM, signal.SIGINT)}
        self.watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        for signum, handler in self.before.items():
            signal.signal(signum, handler)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if not self.asked:
            self.asked = True
            self.kill_at = time.monotonic() + self.grace_s - min(5.0, self.grace_s / 2)  # be gone before we are killed
            self.mailbox.ask_to_stop()
            self.mailbox.signal(signal.SIGTERM)

    def _watch(self) -> None:
        while not self.over.wait(0.2):
            try:
                self.still_ours()
                late = time.monotonic() > self.kill_at
            except TripodError:  # told by whoever waits for the workers
                late = True
            if late:
                self.mailbox.signal(signal.SIGKILL)


def _conclude(job: Job, store: Store, folder: Path, failures: dict[int, ProcessFailure], stopping: _Stopping) -> None:
    """Fail as the cause of the failure says; return when every worker is done."""
    outcomes = read_outcomes(folder)
    causes = [o for o in outcomes if o.code != Exit.DONE and not o.secondary]
    if causes:
        raise_outcome(causes[0])
    if stopping.asked and (failures or len(outcomes) < job.runtime.nproc):
        raise PreemptedError(f"stopped before the state was saved, grace {stopping.grace_s} s; {_current(job, store)}")
    told = {o.rank for o in outcomes}
    for rank, failure in sorted(failures.items()):
        if rank not in told:
            how = f"killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exit code {failure.exitcode}"
            raise TemporaryError(f"rank {rank} is gone without a word: {how}; {_current(job, store)}")
    for outcome in outcomes:
        if outcome.code != Exit.DONE:
            raise_outcome(outcome)


def _current(job: Job, store: Store) -> str:
    steps = checkpoint.committed_steps(store, job.base)
    return f"{checkpoint.prefix_of(job.base, steps[0])} stays current" if steps else "no checkpoint is there yet"
