"""Named pointers (labels such as `v1`, aliases such as `champion`): small objects that name a target.

The one kind of object here that changes, and only by compare-and-swap: of two that move a pointer at
once one wins and the other is told.
"""

from enum import Enum
from time import time
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib.errors import UserError
from steps.lib.store import ConflictError, NotFoundError, Store


class Pointer(BaseModel):
    """What the object of a pointer holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    """What it names, a key or a version."""
    moved_at: float
    """Seconds since the epoch."""
    moved_by: str
    """The run that moved it."""


class Anything(Enum):
    """Says that a pointer may be moved from wherever it is."""

    ANYTHING = "anything"


ANYTHING = Anything.ANYTHING


def read(store: Store, key: str) -> str | None:
    """The target of the pointer `key`; None when there is no such pointer."""
    pointer = show(store, key)
    return pointer.target if pointer else None


def show(store: Store, key: str) -> Pointer | None:
    """The pointer with when and by whom it was moved; None when there is no such pointer.

    Raises:
        UserError: the object is no pointer.
    """
    found = _load(store, key)
    return found[0] if found else None


def move(
    store: Store,
    key: str,
    target: str,
    *,
    expected: str | Literal[Anything.ANYTHING] | None = ANYTHING,
    by: str = "",
) -> Pointer:
    """Point `key` to `target`. Moving it where it is already changes nothing.

    Args:
        expected: the target that it must have now, None where it must not exist yet.
        by: the run that asks.

    Raises:
        ConflictError: it points elsewhere than `expected`, or somebody moved it meanwhile.
    """
    found = _load(store, key)
    now = found[0].target if found else None
    if expected is not ANYTHING and now != expected:
        raise ConflictError(f"pointer {key}: points to {now!r}, expected {expected!r}")
    if found and now == target:
        return found[0]
    pointer = Pointer(target=target, moved_at=time(), moved_by=by)
    data = pointer.model_dump_json().encode()
    try:
        if found:
            store.swap(key, data, found[1])
        else:
            store.create(key, data)
    except ConflictError as e:
        raise ConflictError(f"pointer {key}: was moved meanwhile, now to {read(store, key)!r}") from e
    return pointer


def _load(store: Store, key: str) -> tuple[Pointer, str] | None:
    try:
        data, tag = store.get_tagged(key)
        return Pointer.model_validate_json(data), tag
    except NotFoundError:
        return None
    except ValidationError as e:
        raise UserError(f"{key} in {store.uri} is no pointer: {e.errors()[0]['msg']}") from e
