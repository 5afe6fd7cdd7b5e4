"""One writer for a key: a lease, an object in the store that says who holds it.

    with Lease(store, key, run_id=ctx.run_id) as lease:
        ...
        lease.check()            now and then: raises once somebody else has taken it over
        lease.next_attempt()     the attempt number rises only here, by compare-and-swap

A holder renews its heartbeat every `beat_s` seconds. Others get HeldError, until

    the holder has released it                        taken at once
    its process on this same machine is gone          taken at once
    its heartbeat is older than `stale_s`, and does   taken
    not move for 2 x beat_s while we watch

The last condition is watched by the clock of whoever asks, so a holder whose clock is slow, or whose
store was away, keeps its lease. A run that finds itself as the holder (its pod was restarted) waits
for the first of these; it isn't turned away by its own shadow. A released lease stays in the store:
it remembers the attempt number.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib import process
from steps.lib.errors import TemporaryError, TripodError, UserError
from steps.lib.store import ConflictError, NotFoundError, Store

BEAT_S = 10.0
STALE_S = 60.0


class Holder(BaseModel):
    """Who holds a lease."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    host: str
    boot_id: str
    """Of this start of the machine; "" where the system has none."""
    pid_space: str
    """The process namespace that `pid` counts in: containers of one machine have their own."""
    pid: int
    started: str
    """When the process began, as steps.lib.process tells it: tells it from a later one with its pid."""
    heartbeat: float
    """Seconds since the epoch, by the holder's clock."""
    attempt: int
    released: bool = False

    @property
    def place(self) -> process.Place:
        """Where it runs."""
        return process.Place(self.host, self.boot_id, self.pid_space)

    @property
    def process(self) -> tuple[str, str, str, int, str]:
        """Names one process for ever."""
        return *self.place, self.pid, self.started


class HeldError(UserError):
    """Somebody else holds the lease."""

    def __init__(self, holder: Holder):
        self.holder = holder
        age = max(0.0, time.time() - holder.heartbeat)
        super().__init__(
            f"already running: {holder.run_id} ({holder.host}, pid {holder.pid}, heard from {age:.0f} s ago); "
            f"follow it with `python -m pipelines.runs status {holder.run_id} --follow`"
        )


def holder_of(store: Store, key: str) -> Holder | None:
    """Who holds the lease `key`, dead or alive; None when nobody does."""
    found = _load(store, key)
    return found[0] if found and not found[0].released else None


class Lease:
    """A lease to hold, as a context manager that is entered once.

    Args:
        key: of the lease's object.
        beat_s: seconds between heartbeats.
        stale_s: a heartbeat older than this may belong to a dead holder.
        say: is told one line when entering has to wait.

    Raises (on entering):
        HeldError: a live holder has it.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        run_id: str,
        beat_s: float = BEAT_S,
        stale_s: float = STALE_S,
        say: Callable[[str], None] = lambda line: None,
    ):
        self._store, self._key, self._beat_s, self._stale_s, self._say = store, key, beat_s, stale_s, say
        self._mine = _me(run_id)
        self._tag = ""
        self._lost: TripodError | None = None
        self._lock = threading.Lock()
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease {key}", daemon=True)

    @property
    def attempt(self) -> int:
        """The attempt number, from 1; it outlives holders."""
        return self._mine.attempt

    def check(self) -> None:
        """Raise HeldError, or what the store said, once the lease is no longer ours."""
        if self._lost:
            raise self._lost

    def next_attempt(self) -> int:
        """Raise the attempt number by one and return it.

        Raises:
            HeldError: the lease was taken over.
        """
        self._update(attempt=self._mine.attempt + 1)
        self.check()
        return self.attempt

    def __enter__(self) -> Self:
        while not self._try():
            pass
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join()
        if not self._lost:
            try:
                self._update(released=True)
            except (TripodError, OSError) as e:  # the end of our process releases it as well
                self._say(f"lease {self._key} not released: {e}")

    def _try(self) -> bool:
        """Take the lease if it is free. False: somebody was faster, look again."""
        found = _load(self._store, self._key)
        if found and not found[0].released and not self._is_abandoned(*found):
            holder = holder_of(self._store, self._key)
            if holder:
                raise HeldError(holder)
            return False
        attempt = found[0].attempt if found else 1
        mine = self._mine.model_copy(update={"attempt": attempt, "heartbeat": time.time()})
        data = mine.model_dump_json().encode()
        try:
            self._tag = self._store.swap(self._key, data, found[1]) if found else self._store.create(self._key, data)
        except ConflictError:
            return False
        self._mine = mine
        return True

    def _is_abandoned(self, holder: Holder, tag: str) -> bool:
        if holder.boot_id and holder.place == self._mine.place:
            return not process.is_alive(holder.pid, holder.started)
        age = time.time() - holder.heartbeat
        if age > self._stale_s:
            return self._stands_still(holder, tag, 2 * self._beat_s)
        if holder.run_id == self._mine.run_id:
            return self._stands_still(holder, tag, max(2 * self._beat_s, min(self._stale_s, self._stale_s - age)))
        return False

    def _stands_still(self, holder: Holder, tag: str, for_s: float) -> bool:
        self._say(f"waiting up to {for_s:.0f} s: is {holder.run_id} on {holder.host} still alive?")
        deadline = time.monotonic() + for_s
        while (left := deadline - time.monotonic()) > 0:
            head = self._store.head(self._key)
            if head is None or head.tag != tag:
                return False
            self._leave.wait(min(left, self._beat_s / 2))
        return True

    def _beat(self) -> None:
        while not self._leave.wait(self._beat_s) and not self._lost:
            try:
                self._update()
            except (TemporaryError, OSError):
                continue  # the store is away, or full, for everybody
            except TripodError as e:
                self._lost = e

    def _update(self, **changes: object) -> None:
        with self._lock:
            mine = self._mine.model_copy(update={"heartbeat": time.time(), **changes})
            data = mine.model_dump_json().encode()
            try:
                self._tag = self._store.swap(self._key, data, self._tag)
            except ConflictError:
                found = _load(self._store, self._key)
                if not found or found[0].process != mine.process:
                    self._lost = HeldError(found[0]) if found else UserError(f"lease {self._key}: was removed")
                    return
                # a write of ours got through although the store seemed away
                self._tag = self._store.swap(self._key, data, found[1])
            self._mine = mine


def _load(store: Store, key: str) -> tuple[Holder, str] | None:
    try:
        data, tag = store.get_tagged(key)
        return Holder.model_validate_json(data), tag
    except NotFoundError:
        return None
    except ValidationError as e:
        raise UserError(
            f"{key} in {store.uri} is no lease: {e.errors()[0]['msg']}; when nothing that it guards runs any more, delete it"
        ) from e


def _me(run_id: str) -> Holder:
    return Holder(
        run_id=run_id,
        **process.place()._asdict(),
        pid=os.getpid(),
        started=process.started(os.getpid()),
        heartbeat=time.time(),
        attempt=1,
    )
