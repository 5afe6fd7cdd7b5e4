"""Labels and aliases: moved by compare-and-swap."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from steps.lib import pointer
from steps.lib.errors import UserError
from steps.lib.store import ConflictError, Store

KEY = "models/m/aliases/champion.json"


def test_move_and_read(each: Store) -> None:
    assert pointer.read(each, KEY) is None
    assert pointer.show(each, KEY) is None
    before = time.time()
    pointer.move(each, KEY, "models/m/1", by="run-1")
    assert pointer.read(each, KEY) == "models/m/1"
    content = json.loads(each.get(KEY))
    assert content.keys() == {"target", "moved_at", "moved_by"}
    assert content["moved_by"] == "run-1"
    assert before <= content["moved_at"] <= time.time()
    pointer.move(each, KEY, "models/m/2")
    assert pointer.read(each, KEY) == "models/m/2"


def test_expectations(store: Store) -> None:
    with pytest.raises(ConflictError, match="points to None, expected 'a'"):
        pointer.move(store, KEY, "b", expected="a")
    pointer.move(store, KEY, "a", expected=None)
    with pytest.raises(ConflictError, match="points to 'a', expected None"):
        pointer.move(store, KEY, "b", expected=None)
    pointer.move(store, KEY, "b", expected="a")
    assert pointer.read(store, KEY) == "b"


def test_moving_to_where_it_is_changes_nothing(store: Store) -> None:
    first = pointer.move(store, KEY, "a", by="run-1")
    content = store.get_tagged(KEY)
    assert pointer.move(store, KEY, "a", by="run-2", expected="a") == first
    assert store.get_tagged(KEY) == content


@pytest.mark.parametrize("start", [None, "a"])
def test_of_racing_movers_one_wins(each: Store, start: str | None) -> None:
    if start:
        pointer.move(each, KEY, start)
    barrier = threading.Barrier(5)

    def move(n: int) -> bool:
        barrier.wait()
        try:
            pointer.move(each, KEY, f"target-{n}", expected=start)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(5) as pool:
        won = list(pool.map(move, range(5)))
    assert sum(won) == 1
    assert pointer.read(each, KEY) == f"target-{won.index(True)}"


def test_an_object_that_is_no_pointer(store: Store) -> None:
    store.put(KEY, b"[]")
    with pytest.raises(UserError, match="is no pointer"):
        pointer.read(store, KEY)
