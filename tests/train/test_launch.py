"""What the agent does around torchrun."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from steps.lib.deaf import Deaf
from steps.lib.errors import Exit, PreemptedError, TemporaryError, TripodError, UserError
from steps.lib.store import Store
from steps.train import launch
from steps.train.gang import join
from steps.train.job import Job
from steps.train.launch import _await_name, _conclude, _Stopping
from steps.train.outcome import Mailbox, read_outcomes, write_outcome
from steps.train.runtime import Runtime
from tests.train.trainings import tiny


@pytest.fixture
def job() -> Job:
    return Job(params=tiny(), store_uri="", base="checkpoints/k", eos_id=0, runtime=Runtime(nproc=2))


def conclude(job: Job, store: Store, folder: Path, failures: dict[int, ProcessFailure], *, asked: bool = False) -> None:
    stopping = _Stopping(Mailbox(folder), 30, lambda: None)
    stopping.asked = asked
    _conclude(job, store, folder, failures, stopping)


def failure(rank: int, code: int) -> ProcessFailure:
    return ProcessFailure(local_rank=rank, pid=1, exitcode=code, error_file="none")


def test_a_name_that_appears_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def resolve(host: str, port: None) -> list[object]:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(launch, "socket", SimpleNamespace(getaddrinfo=resolve, gaierror=socket.gaierror))
    _await_name("train-node-0-0.train", poll_s=0.01)
    assert asked == ["train-node-0-0.train"] * 3


def test_a_name_that_never_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: None) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(launch, "socket", SimpleNamespace(getaddrinfo=resolve, gaierror=socket.gaierror))
    with pytest.raises(TemporaryError, match="PET_MASTER_ADDR: nowhere has no address after 0 s"):
        _await_name("nowhere", timeout_s=0, poll_s=0.01)


def test_the_cause_is_told_not_its_echo(job: Job, store: Store, tmp_path: Path) -> None:
    write_outcome(tmp_path, 0, Exit.TEMPORARY, "lost contact with the other ranks: gloo", secondary=True)
    write_outcome(tmp_path, 1, Exit.USER, "global_batch: got 7")
    with pytest.raises(UserError, match=r"^global_batch: got 7$"):
        conclude(job, store, tmp_path, {0: failure(0, 75), 1: failure(1, 2)})


def test_a_dead_rank_is_the_cause_when_the_others_lost_contact(job: Job, store: Store, tmp_path: Path) -> None:
    write_outcome(tmp_path, 0, Exit.TEMPORARY, "lost contact with the other ranks: gloo", secondary=True)
    with pytest.raises(
        TemporaryError, match="rank 1 is gone without a word: killed by SIGKILL; no checkpoint is there"
    ):
        conclude(job, store, tmp_path, {0: failure(0, 75), 1: failure(1, -signal.SIGKILL)})


def test_lost_contact_alone_is_temporary(job: Job, store: Store, tmp_path: Path) -> None:
    write_outcome(tmp_path, 0, Exit.TEMPORARY, "lost contact with the other ranks: gloo", secondary=True)
    write_outcome(tmp_path, 1, Exit.TEMPORARY, "lost contact with the other ranks: gloo", secondary=True)
    with pytest.raises(TemporaryError, match="lost contact"):
        conclude(job, store, tmp_path, {0: failure(0, 75)})


def test_all_done_and_all_preempted(job: Job, store: Store, tmp_path: Path) -> None:
    for rank in (0, 1):
        write_outcome(tmp_path, rank, Exit.DONE, "")
    conclude(job, store, tmp_path, {})
    for rank in (0, 1):
        write_outcome(tmp_path, rank, Exit.PREEMPTED, "stopped at step 3")
    with pytest.raises(PreemptedError, match="stopped at step 3"):
        conclude(job, store, tmp_path, {}, asked=True)


def test_a_bug_stays_a_bug(job: Job, store: Store, tmp_path: Path) -> None:
    write_outcome(tmp_path, 0, Exit.BUG, "rank 0: KeyError: 'x'")
    with pytest.raises(TripodError) as e:
        conclude(job, store, tmp_path, {0: failure(0, 1)})
    assert e.value.code == Exit.BUG


def test_a_worker_that_starts_late_hears_that_it_has_to_stop(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path)
    assert not mailbox.stop_was_asked()
    mailbox.ask_to_stop()
    assert Mailbox(tmp_path).stop_was_asked()
    assert read_outcomes(tmp_path) == []


def test_a_gang_of_another_size_than_asked_for_is_refused() -> None:
    runtime = Runtime(nodes=2, nproc=4, master_addr="node-0")
    message = r"world size: got 4, asked for 2 nodes x 4 processes = 8"
    with pytest.raises(UserError, match=message), join(runtime, replicate=1, rank=0, local_rank=0, ranks=4):
        pass


def test_workers_end_when_another_run_has_taken_the_lease(tmp_path: Path) -> None:
    worker = subprocess.Popen(["sleep", "60"])
    (tmp_path / "pid-0").write_text(str(worker.pid))

    def lost() -> None:
        raise UserError("already running: tuesday")

    with _Stopping(Mailbox(tmp_path), 30, lost):
        assert worker.wait(10) == -signal.SIGKILL


def test_signals_reach_the_workers_and_are_ours_again_afterwards(tmp_path: Path) -> None:
    worker = subprocess.Popen(["sleep", "60"])
    (tmp_path / "pid-0").write_text(str(worker.pid))
    before = signal.getsignal(signal.SIGTERM)
    with _Stopping(Mailbox(tmp_path), 30, lambda: None) as stopping:
        signal.raise_signal(signal.SIGTERM)
        assert worker.wait(10) == -signal.SIGTERM
    assert stopping.asked
    assert Mailbox(tmp_path).stop_was_asked()
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_worker_goes_on_when_nobody_reads_what_it_says() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as stream:
        os.close(read)
        deaf = Deaf(stream)
        print("progress", file=deaf, flush=True)
        print("progress", file=deaf, flush=True)
        with contextlib.suppress(BrokenPipeError):  # what the stream still holds
            stream.close()


@pytest.mark.skipif(sys.platform != "linux", reason="uses /dev/full")
@pytest.mark.parametrize("name", ["pid-0", "rank-0"])
def test_a_worker_without_room_for_its_outcome_says_so(name: str, tmp_path: Path) -> None:
    """In one line: its first and its last act are writes."""
    (tmp_path / f"{name}.part").symlink_to("/dev/full")
    env = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "TRIPOD_AGENT_PID": str(os.getpid())}
    argv = [sys.executable, "-m", "steps.train.worker", str(tmp_path / "job.json")]
    done = subprocess.run(argv, env=env, stderr=subprocess.PIPE, text=True)
    path = tmp_path / {"pid-0": "pid-0.part", "rank-0": "rank-0.json"}[name]
    assert done.returncode == 75
    assert done.stderr == f"error: rank 0: {path}: no space left; free some, then run the same command again\n"
