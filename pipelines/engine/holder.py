"""Which process runs a run: `runs/<id>/engine.json`, there while the engine is.

It makes a second engine for the same run fail at once, tells `runs cancel` whom to signal, and tells
`runs list` that a run whose process is gone is lost, not running.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib import process
from steps.lib.errors import TripodError, UserError
from steps.lib.store import ConflictError, NotFoundError, Store

BEAT_S = 10.0
"""How often a holder says that it is alive."""
STALE_S = 60.0
"""A holder on another machine that has said nothing for this long is gone: six beats."""


class Holder(BaseModel):
    """A process, so that it cannot be taken for another one of the same number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str
    boot_id: str
    pid_space: str
    pid: int
    born: str
    """When the process started, as steps.lib.process tells it."""
    beat: float
    """Seconds since the epoch of the last sign of life."""

    @property
    def here(self) -> bool:
        """Whether we can see, and signal, its process."""
        return (self.host, self.boot_id, self.pid_space) == process.place()

    @property
    def process(self) -> tuple[str, str, str, int, str]:
        """Names one process for ever."""
        return self.host, self.boot_id, self.pid_space, self.pid, self.born

    def alive(self, now: float) -> bool:
        """Whether the process still runs: looked up here, by its last beat elsewhere."""
        if not self.here:
            return now - self.beat < STALE_S
        return process.is_alive(self.pid, self.born)


def this_process() -> Holder:
    """The holder that this process is."""
    pid = os.getpid()
    return Holder(**process.place()._asdict(), pid=pid, born=process.started(pid), beat=time.time())


def holder_key(run_id: str) -> str:
    """Where the holder of a run is written."""
    return f"runs/{run_id}/engine.json"


def find_holder(store: Store, run_id: str) -> Holder | None:
    """The process that runs `run_id`, or did when it was ended before it could say so.

    Raises:
        UserError: the object is damaged.
    """
    try:
        return _parse(store, holder_key(run_id), store.get(holder_key(run_id)))
    except NotFoundError:
        return None


def _parse(store: Store, key: str, data: bytes) -> Holder:
    try:
        return Holder.model_validate_json(data)
    except ValidationError as e:
        raise UserError(
            f"{key} in {store.uri}: unreadable: {e.errors()[0]['msg']}; it names the process of a run: "
            "when no process of that run is left, delete it"
        ) from e


@contextmanager
def held(store: Store, run_id: str) -> Iterator[Holder]:
    """Make this process the one that runs `run_id`, until the block ends.

    Raises:
        UserError: another process runs it.
    """
    mine = this_process()
    while not _take(store, run_id, mine):
        pass
    try:
        yield mine
    finally:
        with suppress(TripodError):  # the end of our process says it as well
            there = find_holder(store, run_id)
            if there and there.process == mine.process:  # else another has taken the run over
                store.delete([holder_key(run_id)])


def _take(store: Store, run_id: str, mine: Holder) -> bool:
    """Write the holder where none lives. False when another process was faster: look again."""
    key, data = holder_key(run_id), mine.model_dump_json().encode()
    try:
        store.create(key, data)
        return True
    except ConflictError:
        pass
    try:
        there, tag = store.get_tagged(key)
        other = _parse(store, key, there)
        if other.alive(time.time()):
            raise UserError(
                f"already running: {run_id} (process {other.pid} on {other.host}); "
                f"follow it with `python -m pipelines.runs status {run_id} --follow`"
            )
        store.swap(key, data, tag)
        return True
    except (NotFoundError, ConflictError):
        return False


def beat(store: Store, run_id: str, holder: Holder) -> None:
    """Say that the holder is alive.

    Raises:
        UserError: another process has taken the run over.
    """
    there, tag = store.get_tagged(holder_key(run_id))
    other = _parse(store, holder_key(run_id), there)
    if other.process != holder.process:
        raise UserError(f"run {run_id} was taken over by process {other.pid} on {other.host}")
    beaten = holder.model_copy(update={"beat": time.time()})
    store.swap(holder_key(run_id), beaten.model_dump_json().encode(), tag)
