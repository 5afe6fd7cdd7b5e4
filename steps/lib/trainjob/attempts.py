"""The attempt number of a train-key: `checkpoints/<train-key>/attempt.json`, beside the lease.

It rises only here, by compare-and-swap, and only after the attempt before has been written down as
ended. So two launchers can never be at work on different attempts, and a TrainJob whose name holds
the number exists at most once.
"""

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib.errors import UserError
from steps.lib.store import ConflictError, NotFoundError, Store
from steps.lib.trainjob.build import KEY_CHARS


class Attempt(BaseModel):
    """One attempt, and how it ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    run_id: str
    """The run that began it."""
    nodes: int
    """Whole nodes that it asked for."""
    ended: bool = False
    code: int = 0
    """Of the exit table, when it has ended."""
    why: str = ""
    """One line, when it has ended otherwise than well."""


def attempt_key(key: str) -> str:
    """Where the attempt of a train-key (or of its first characters) is."""
    return f"checkpoints/{key[:KEY_CHARS]}/attempt.json"


def current(store: Store, key: str) -> Attempt | None:
    """The newest attempt; None before the first."""
    found = _load(store, key)
    return found[0] if found else None


def begin(store: Store, key: str, *, run_id: str, nodes: int) -> Attempt:
    """The attempt to submit: the newest while it has not ended, else the next one.

    Of launchers that race, all get the same.
    """
    while True:
        found = _load(store, key)
        if found and not found[0].ended:
            return found[0]
        new = Attempt(number=found[0].number + 1 if found else 1, run_id=run_id, nodes=nodes)
        data = new.model_dump_json().encode()
        try:
            if found:
                store.swap(attempt_key(key), data, found[1])
            else:
                store.create(attempt_key(key), data)
            return new
        except ConflictError:
            continue


def end(store: Store, key: str, number: int, *, code: int, why: str) -> Attempt | None:
    """Write down how attempt `number` ended; the first word stays. None when there is no such attempt."""
    while True:
        found = _load(store, key)
        if found is None or found[0].number != number:
            return None
        if found[0].ended:
            return found[0]
        ended = found[0].model_copy(update={"ended": True, "code": code, "why": why})
        try:
            store.swap(attempt_key(key), ended.model_dump_json().encode(), found[1])
            return ended
        except ConflictError:
            continue


def _load(store: Store, key: str) -> tuple[Attempt, str] | None:
    try:
        data, tag = store.get_tagged(attempt_key(key))
        return Attempt.model_validate_json(data), tag
    except NotFoundError:
        return None
    except ValidationError as e:
        raise UserError(f"{attempt_key(key)} in {store.uri}: unreadable, {e.errors()[0]['msg']}") from e
