"""One writer for a key: who gets a lease, who is turned away, who may take one over and when."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from steps.lib.errors import Exit, UserError
from steps.lib.lease import HeldError, Holder, Lease, holder_of
from steps.lib.store import Store
from steps.lib.store.s3 import S3Store
from tests.store.servers import Answer, Proxy

KEY = "checkpoints/t/lease.json"
FAST = {"beat_s": 0.05, "stale_s": 0.5}
HOLD = """
import sys
from steps.lib.lease import Lease
from steps.lib.store import open_store
with Lease(open_store(sys.argv[1]), sys.argv[2], run_id=sys.argv[3], beat_s=3600) as lease:
    lease.next_attempt()
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold_in_a_process(store: Store, run_id: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, store.uri, KEY, run_id]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "held\n"
    return process


def elsewhere(store: Store, run_id: str, age_s: float) -> Holder:
    """A holder on another machine that was heard from `age_s` ago."""
    values = {"host": "far", "boot_id": "another", "pid_space": "pid:[1]", "pid": 1, "started": "5", "attempt": 3}
    holder = Holder.model_validate({**values, "run_id": run_id, "heartbeat": time.time() - age_s})
    store.put(KEY, holder.model_dump_json().encode())
    return holder


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def heartbeat(store: Store) -> float:
    holder = holder_of(store, KEY)
    assert holder
    return holder.heartbeat


def test_hold_and_release(each: Store) -> None:
    assert holder_of(each, KEY) is None
    with Lease(each, KEY, run_id="one") as lease:
        holder = holder_of(each, KEY)
        assert holder
        assert (holder.run_id, holder.pid, holder.attempt, lease.attempt) == ("one", os.getpid(), 1, 1)
        lease.check()
    assert holder_of(each, KEY) is None
    assert [head.key for head in each.list("")] == [KEY]


def test_the_second_run_is_told_which_one_is_first(store: Store) -> None:
    with Lease(store, KEY, run_id="first"):
        with pytest.raises(HeldError) as caught, Lease(store, KEY, run_id="second"):
            pass
        assert str(caught.value).startswith("already running: first ")
        assert "`python -m pipelines.runs status first --follow`" in str(caught.value)
        assert caught.value.holder.pid == os.getpid()
        assert caught.value.code == Exit.USER
        assert holder_of(store, KEY).run_id == "first"  # type: ignore[union-attr]


def test_attempts_rise_only_when_asked_and_outlive_holders(store: Store) -> None:
    with Lease(store, KEY, run_id="a") as lease:
        assert (lease.next_attempt(), lease.next_attempt(), lease.attempt) == (2, 3, 3)
    with Lease(store, KEY, run_id="b") as lease:
        assert lease.attempt == 3
        assert holder_of(store, KEY).attempt == 3  # type: ignore[union-attr]


def test_the_heartbeat_moves_and_keeps_the_attempt(store: Store) -> None:
    with Lease(store, KEY, run_id="a", beat_s=0.01) as lease:
        before = heartbeat(store)
        for n in range(2, 12):
            assert lease.next_attempt() == n
        wait_for(lambda: heartbeat(store) > before + 0.02)
        assert holder_of(store, KEY).attempt == 11  # type: ignore[union-attr]
        lease.check()


def test_of_racing_runs_one_gets_it(each: Store) -> None:
    barrier, over = threading.Barrier(6), threading.Event()

    def take(n: int) -> bool:
        barrier.wait()
        try:
            with Lease(each, KEY, run_id=str(n)):
                over.wait(30)  # until all others have been turned away
                return True
        except HeldError:
            barrier_left.release()
            return False

    barrier_left = threading.Semaphore(0)
    with ThreadPoolExecutor(6) as pool:
        results = [pool.submit(take, n) for n in range(6)]
        for _ in range(5):
            assert barrier_left.acquire(timeout=30)
        over.set()
    assert sum(r.result() for r in results) == 1


def test_a_dead_process_of_this_machine_is_taken_over_at_once(store: Store) -> None:
    process = hold_in_a_process(store, "killed")
    with pytest.raises(HeldError, match="already running: killed"), Lease(store, KEY, run_id="other"):
        pass
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
    started = time.monotonic()
    with Lease(store, KEY, run_id="killed") as lease:  # the default waits would take 20 s and more
        assert time.monotonic() - started < 10
        assert lease.attempt == 2
        assert holder_of(store, KEY).pid == os.getpid()  # type: ignore[union-attr]
    process.communicate()


def test_a_stopped_process_of_this_machine_still_holds(store: Store) -> None:
    process = hold_in_a_process(store, "stopped")
    process.send_signal(signal.SIGSTOP)
    tagged, tag = store.get_tagged(KEY)
    old = Holder.model_validate_json(tagged).model_copy(update={"heartbeat": 0.0})
    store.swap(KEY, old.model_dump_json().encode(), tag)
    with pytest.raises(HeldError), Lease(store, KEY, run_id="other", **FAST):
        pass
    process.kill()
    process.communicate()


def test_a_later_process_with_the_same_pid_is_not_the_holder(store: Store) -> None:
    process = hold_in_a_process(store, "old")
    tagged, tag = store.get_tagged(KEY)
    holder = Holder.model_validate_json(tagged)
    reused = holder.model_copy(update={"started": f"{holder.started}0"})
    store.swap(KEY, reused.model_dump_json().encode(), tag)
    with Lease(store, KEY, run_id="new"):
        pass
    process.kill()
    process.communicate()


def test_elsewhere_a_fresh_heartbeat_holds(store: Store) -> None:
    elsewhere(store, "far-run", age_s=0.0)
    with pytest.raises(HeldError, match="far-run"), Lease(store, KEY, run_id="other", beat_s=0.05):
        pass


def test_elsewhere_an_old_heartbeat_is_taken_over(store: Store) -> None:
    elsewhere(store, "far-run", age_s=61)
    said: list[str] = []
    with Lease(store, KEY, run_id="other", beat_s=0.05, say=said.append) as lease:
        assert lease.attempt == 3
    assert said == ["waiting up to 0 s: is far-run on far still alive?"]


@pytest.mark.parametrize(("run_id", "age_s"), [("other", 3600.0), ("far-run", 0.0)])
def test_elsewhere_a_moving_heartbeat_holds_whatever_the_clocks_say(store: Store, run_id: str, age_s: float) -> None:
    elsewhere(store, "far-run", age_s)
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.01):
            elsewhere(store, "far-run", age_s)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(HeldError, match="far-run"), Lease(store, KEY, run_id=run_id, beat_s=0.2, stale_s=1):
            pass
    finally:
        done.set()
        thread.join()


def test_a_run_waits_for_its_own_shadow(store: Store) -> None:
    elsewhere(store, "same", age_s=0.0)
    started = time.monotonic()
    with Lease(store, KEY, run_id="same", **FAST) as lease:
        assert time.monotonic() - started > 0.4
        assert lease.attempt == 3


def test_a_holder_that_lost_it_is_told(store: Store) -> None:
    with Lease(store, KEY, run_id="first", beat_s=0.01) as lease:
        usurper = elsewhere(store, "second", age_s=0.0)
        wait_for(lambda: lease._lost)
        for call in (lease.check, lease.next_attempt):
            with pytest.raises(HeldError, match="already running: second"):
                call()
    assert holder_of(store, KEY) == usurper


def test_a_removed_lease_is_lost(store: Store) -> None:
    with Lease(store, KEY, run_id="a", beat_s=3600) as lease:
        store.delete([KEY])
        with pytest.raises(UserError, match="was removed"):
            lease.next_attempt()


def test_a_store_that_was_away_costs_no_lease(proxy: Proxy, use: Callable[[Proxy], str]) -> None:
    far = S3Store(use(proxy), retry_s=0.1)
    with Lease(far, KEY, run_id="a", beat_s=0.02) as lease:
        proxy.rule = lambda request, forward: Answer(503, "SlowDown")
        before = len(proxy.seen)
        wait_for(lambda: len(proxy.seen) > before + 6)
        proxy.rule = lambda request, forward: forward()
        back = time.time()
        wait_for(lambda: heartbeat(far) > back)
        lease.check()
    assert holder_of(far, KEY) is None


def test_a_full_disk_costs_no_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    swap, refused = store.swap, threading.Event()

    def full(key: str, data: bytes, tag: str) -> str:
        refused.set()
        raise OSError(errno.ENOSPC, "No space left on device", key)

    with Lease(store, KEY, run_id="a", beat_s=0.02) as lease:
        monkeypatch.setattr(store, "swap", full)
        assert refused.wait(30)
        monkeypatch.setattr(store, "swap", swap)
        back = time.time()
        wait_for(lambda: heartbeat(store) > back)
        lease.check()
    assert holder_of(store, KEY) is None


def test_an_object_that_is_no_lease(store: Store) -> None:
    store.put(KEY, b"{}")
    with pytest.raises(UserError, match=f"{KEY} in file://.* is no lease"), Lease(store, KEY, run_id="a"):
        pass


def test_an_error_inside_releases(store: Store) -> None:
    with pytest.raises(ZeroDivisionError), Lease(store, KEY, run_id="a"):
        _ = 1 / 0
    assert holder_of(store, KEY) is None
