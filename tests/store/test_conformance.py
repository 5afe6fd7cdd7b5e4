"""One suite for every store: what base.py promises, on a folder, on moto and on versitygw."""

import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from steps.lib.errors import UserError
from steps.lib.store import ConflictError, NotFoundError, Store, check_key, open_store

MIB = 1 << 20
ODD_SIZES = [0, 1, 7, 4095, 4096, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1]


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def keys(store: Store, prefix: str = "") -> list[str]:
    return [head.key for head in store.list(prefix)]


# ---- control objects ---------------------------------------------------------------------------


def test_put_get_head_list_agree(each: Store) -> None:
    tag = each.put("a/b.json", b"one")
    assert each.get("a/b.json") == b"one"
    assert each.get_tagged("a/b.json") == (b"one", tag)
    head = each.head("a/b.json")
    assert head is not None
    assert (head.key, head.size, head.tag) == ("a/b.json", 3, tag)
    assert [(h.key, h.size, h.tag) for h in each.list("a")] == [("a/b.json", 3, tag)]


def test_the_tag_follows_the_content(each: Store) -> None:
    tags = [each.put("k", b"%03d" % n) for n in range(20)]
    assert len(set(tags)) == 20


def test_buffers_of_every_kind(each: Store) -> None:
    for data in (b"abcd", bytearray(b"abcd"), memoryview(b"xabcd")[1:], memoryview(b"a-b-c-d-")[::2]):
        each.put("control", data)
        assert each.get("control") == b"abcd"
        assert each.upload("bulk", data) == 4
        assert bytes(each.read("bulk")) == b"abcd"


def test_nothing_there(each: Store) -> None:
    assert each.head("a/b") is None
    assert keys(each) == []
    assert keys(each, "a") == []
    each.delete(["a/b", "c"])
    for read in (each.get, each.get_tagged, each.read):
        with pytest.raises(NotFoundError, match="a/b"):
            read("a/b")
    with pytest.raises(NotFoundError, match="a/b"):
        each.read_ranges("a/b", [(0, 1), (2, 1)])


def test_create_once(each: Store) -> None:
    tag = each.create("k", b"first")
    with pytest.raises(ConflictError, match="k"):
        each.create("k", b"second")
    assert each.get_tagged("k") == (b"first", tag)
    each.delete(["k"])
    each.create("k", b"third")
    assert each.get("k") == b"third"


def test_swap_only_what_was_seen(each: Store) -> None:
    old = each.create("k", b"1")
    new = each.swap("k", b"2", old)
    with pytest.raises(ConflictError, match="k"):
        each.swap("k", b"3", old)
    assert each.get_tagged("k") == (b"2", new)
    each.delete(["k"])
    with pytest.raises(ConflictError, match="k"):
        each.swap("k", b"3", new)
    assert each.head("k") is None


def test_listing_is_sorted_and_keeps_to_the_prefix(each: Store) -> None:
    names = ["a/b", "a/c/d", "a-b/x", "a.b", "a0", "a=1", "ab/x", "Z", "b"]
    for name in reversed(names):
        each.put(name, b"")
    assert keys(each) == sorted(names)
    assert keys(each, "a") == ["a/b", "a/c/d"]
    assert keys(each, "a/c") == ["a/c/d"]
    assert keys(each, "a/b") == []


def test_listing_hides_what_conditional_writes_leave(each: Store) -> None:
    each.swap("k", b"2", each.create("k", b"1"))
    assert keys(each) == ["k"]


def test_delete_many(each: Store) -> None:
    for n in range(12):
        each.put(f"d/{n}/x", b"")
    each.put("kept", b"")
    each.delete(f"d/{n}/x" for n in range(12))
    assert keys(each) == ["kept"]
    each.put("d", b"now an object, no folder is in its way")


def test_more_than_a_thousand(tmp_path: Path, s3_uri: str) -> None:
    from moto.s3.models import s3_backends

    names = [f"n/{i % 7}/{i:04d}" for i in range(1005)]
    bucket, _, prefix = s3_uri.removeprefix("s3://").partition("/")
    for name in names:  # from outside: a thousand durable puts take a while
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).touch()
        s3_backends["123456789012"]["aws"].put_object(bucket, f"{prefix}/{name}", b"")
    for store in (open_store(f"file://{tmp_path}/store"), open_store(s3_uri)):
        assert keys(store, "n") == sorted(names)
        store.delete(names)
        assert keys(store) == []


# ---- races -------------------------------------------------------------------------------------


def race(count: int, job: Callable[[int], Any]) -> list[Any]:
    """Results of `job(0..count-1)`, started at one instant in threads."""
    barrier = threading.Barrier(count)

    def run(n: int) -> Any:
        barrier.wait()
        return job(n)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def won(create: Callable[[], object]) -> bool:
    try:
        create()
    except ConflictError:
        return False
    return True


def test_racing_creators_in_threads(each: Store, uri: str) -> None:
    own = [open_store(uri) for _ in range(3)]
    for turn in range(5):
        results = race(6, lambda n, t=turn: won(lambda: [each, *own][n % 4].create(f"r/{t}", b"%d" % n)))
        assert sum(results) == 1, results
        assert each.get(f"r/{turn}") == b"%d" % results.index(True)


def test_no_increment_is_lost_in_threads(each: Store) -> None:
    each.create("counter", b"0")

    def add(_: int) -> None:
        for _ in range(10):
            while True:
                value, tag = each.get_tagged("counter")
                if won(lambda v=value, t=tag: each.swap("counter", b"%d" % (int(v) + 1), t)):
                    break

    race(4, add)
    assert each.get("counter") == b"40"


IN_A_PROCESS = """
import sys
from steps.lib.store import ConflictError, open_store
store, me = open_store(sys.argv[1]), sys.argv[2].encode()
store.head("warm")
print("ready", flush=True)
sys.stdin.readline()
won = 0
for turn in range(5):
    try:
        store.create(f"r/{turn}", me)
        won += 1
    except ConflictError:
        pass
added = 0
while added < 10:
    value, tag = store.get_tagged("counter")
    try:
        store.swap("counter", b"%d" % (int(value) + 1), tag)
        added += 1
    except ConflictError:
        pass
print(won)
"""


def test_racing_processes(each: Store, uri: str) -> None:
    each.create("counter", b"0")
    command = [sys.executable, "-c", IN_A_PROCESS, uri]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([*command, str(n)], **pipes) for n in range(3)]  # type: ignore[call-overload]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    wins = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(wins) == 5, wins
    assert each.get("counter") == b"30"


def test_readers_see_whole_versions(each: Store) -> None:
    versions = {b"a" * 70_000, b"b" * 90_000}
    each.put("k", b"a" * 70_000)
    done = threading.Event()

    def write() -> None:
        for n in range(30):
            each.put("k", b"b" * 90_000 if n % 2 else b"a" * 70_000)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert each.get("k") in versions
    writer.join()


# ---- bulk bytes --------------------------------------------------------------------------------


def test_odd_sizes(each: Store, tmp_path: Path) -> None:
    for size in ODD_SIZES:
        data = noise(size)
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(data)
        assert each.upload("buffer", data) == each.upload("file", source) == size
        for key in ("buffer", "file"):
            assert each.read(key) == data
            assert each.head(key).size == size  # type: ignore[union-attr]
            assert each.download(key, target) == size
            assert target.read_bytes() == data
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "store") == ["source", "target"]


def test_upload_replaces(each: Store) -> None:
    each.upload("k", b"long" * 1000)
    each.upload("k", b"short")
    assert each.read("k") == b"short"
    assert keys(each) == ["k"]


def test_a_big_file_goes_in_parts(each: Store, tmp_path: Path) -> None:
    data = noise(20 * MIB, seed=1)
    (tmp_path / "big").write_bytes(data)
    each.upload("big", tmp_path / "big")
    digest = hashlib.sha256(data).digest()
    assert hashlib.sha256(each.read("big")).digest() == digest
    each.download("big", tmp_path / "back")
    assert hashlib.sha256((tmp_path / "back").read_bytes()).digest() == digest


def test_ranges(each: Store) -> None:
    data = noise(100_000)
    each.upload("k", data)
    ranges = [(0, 10), (99_990, 10), (50_000, 1), (7, 0), (10, 5_000), (10, 5_000), (100_000, 0)]
    assert [bytes(r) for r in each.read_ranges("k", ranges)] == [data[s : s + n] for s, n in ranges]
    assert each.read_ranges("k", []) == []
    assert each.read("k", 99_000) == data[99_000:]
    assert each.read("k", 5, 3) == data[5:8]
    assert each.read("k", 5, 0) == b""
    assert each.read("k", 100_000) == b""


def test_ranges_outside(each: Store) -> None:
    each.upload("k", noise(100_000))
    for start, length in [(99_990, 11), (100_000, 1), (100_001, 0), (200_000, 5), (-1, 2), (0, -1)]:
        with pytest.raises(UserError, match=r"k: .*outside the object"):
            each.read("k", start, length)
        with pytest.raises(UserError, match=r"k: .*outside the object"):
            each.read_ranges("k", [(0, 1), (start, length)])
    with pytest.raises(UserError, match=r"k: .*outside the object"):
        each.read("k", 200_000)


def test_a_source_that_is_not_there(each: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        each.upload("k", tmp_path / "gone")
    assert keys(each) == []


def test_a_download_of_nothing_leaves_nothing(each: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="k"):
        each.download("k", tmp_path / "target")
    assert not [p for p in tmp_path.iterdir() if p.name != "store"]


# ---- keys --------------------------------------------------------------------------------------

BAD_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", ".a", "a/.b", "-a", "a b", "a\n", "ä", "a%20b", "a#1"]
BAD_KEYS += ["a\\b", "a:b", "a?b", "a" * 201, "/".join(["a" * 100] * 6)]


def test_keys_outside_the_grammar(each: Store, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        each.get,
        each.get_tagged,
        each.head,
        each.read,
        lambda key: each.put(key, b""),
        lambda key: each.create(key, b""),
        lambda key: each.swap(key, b"", "tag"),
        lambda key: each.delete([key]),
        lambda key: each.upload(key, b""),
        lambda key: each.read_ranges(key, [(0, 1)]),
        lambda key: each.download(key, tmp_path / "t"),
        lambda key: list(each.list(key or "/")),
    ]
    for key in BAD_KEYS:
        for call in calls:
            with pytest.raises(UserError, match="store key: got"):
                call(key)
    assert keys(each) == []


SEGMENT = st.from_regex(r"[A-Za-z0-9_=][A-Za-z0-9._=-]{0,20}", fullmatch=True)


@given(st.lists(SEGMENT, min_size=1, max_size=5).map("/".join))
def test_keys_of_the_grammar_pass(key: str) -> None:
    assert check_key(key) == key


@given(st.text(max_size=20))
def test_no_key_leaves_the_root(key: str) -> None:
    try:
        check_key(key)
    except UserError:
        return
    assert os.path.normpath(f"/root/{key}") == f"/root/{key}"
    assert key.isascii()
    assert key.isprintable()


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(SEGMENT, st.binary(max_size=100), max_size=8))
def test_any_keys_and_contents_round_trip(tmp_path_factory: pytest.TempPathFactory, objects: dict[str, bytes]) -> None:
    store = open_store(f"file://{tmp_path_factory.mktemp('store')}")
    for key, data in objects.items():
        store.put(key, data)
    assert {head.key: store.get(head.key) for head in store.list("")} == objects
    assert keys(store) == sorted(objects)
