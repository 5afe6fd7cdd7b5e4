"""What only the store in a folder has to bear."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from steps.lib.errors import UserError
from steps.lib.store import Store, open_store


@pytest.mark.parametrize(
    "name", ["with space", "ä+ü=50%", "run#2", "a%20b", "quo'te\"s", "back\\slash", "?q=1&b", "é\u0301"]
)
def test_odd_roots(tmp_path: Path, name: str) -> None:
    store = open_store(f"file://{tmp_path}/{name}/store/")
    assert store.uri == f"file://{tmp_path}/{name}/store"
    store.swap("a/k", b"2", store.create("a/k", b"1"))
    store.upload("a/big", b"bulk")
    assert [head.key for head in store.list("")] == ["a/big", "a/k"]
    assert store.read("a/big", 1, 2) == b"ul"
    assert store.read("a/k") == b"2"
    assert (tmp_path / name / "store" / "a" / "k").read_bytes() == b"2"
    assert [p.name for p in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("uri", ["file://relative", "file:/one/slash", "/path", "", "ftp://x", "s3://"])
def test_other_uris_are_refused(uri: str) -> None:
    with pytest.raises(UserError, match=r"store: got .*file:///absolute/folder and s3://bucket/prefix"):
        open_store(uri)


@pytest.mark.parametrize("below", ["", "/deep/er"])
def test_a_file_where_the_folder_should_be_is_named(below: str, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(UserError, match=f"{tmp_path}/store is no folder; set \\$TRIPOD_STORE"):
        open_store(f"file://{tmp_path}/store{below}")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("call", ["create", "put", "upload"])
def test_the_names_that_lead_to_an_object_are_on_the_disk(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after the call: of each new folder and of the object the name is synced, in the folder above it."""
    on_disk: dict[str, set[str]] = {}
    real = os.fsync

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if os.path.isdir(path):
            on_disk.setdefault(path, set()).update(os.listdir(path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store = open_store(f"file://{tmp_path}/new/store")
    for key in ("a/b/c/k", "a/b/d/k"):
        getattr(store, call)(key, b"1")
        path = tmp_path / "new/store" / key
        while path != tmp_path:
            assert path.name in on_disk[str(path.parent)], path
            path = path.parent
    on_disk.clear()
    getattr(store, call)("a/b/c/l", b"1")
    assert list(on_disk) == [f"{tmp_path}/new/store/a/b/c"], "nothing more once the folders are there"


def test_nothing_heavy_is_imported_for_control_objects(tmp_path: Path) -> None:
    program = (
        "import sys; from steps.lib.store import open_store; store = open_store(sys.argv[1]); "
        "store.swap('k', b'2', store.create('k', b'1')); list(store.list('')); "
        "print([m for m in ('obstore', 'boto3', 'botocore', 'pydantic', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"file://{tmp_path}"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_opening_and_reading_make_no_folder(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    assert store.head("k") is None
    assert list(store.list("")) == []
    assert not (tmp_path / "store").exists()


def test_a_key_cannot_be_the_folder_of_another(store: Store) -> None:
    store.put("a/b", b"")
    calls: list[Callable[[str], object]] = [
        lambda key: store.put(key, b""),
        lambda key: store.create(key, b""),
        lambda key: store.upload(key, b""),
    ]
    for call in calls:
        for key in ("a", "a/b/c"):
            with pytest.raises(UserError, match=rf"{key}: .*cannot also be the folder"):
                call(key)
    for key in ("a", "a/b/c"):
        assert store.head(key) is None
    assert [head.key for head in store.list("")] == ["a/b"]


def test_a_name_no_key_can_have_is_not_passed_over(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store/raw").mkdir(parents=True)
    (tmp_path / "store/raw/.DS_Store").touch()
    assert list(store.list("")) == []
    (tmp_path / "store/raw/my file.jsonl").touch()
    for prefix in ("", "raw"):
        with pytest.raises(UserError, match=r"store/raw.*'my file\.jsonl'.*rename"):
            list(store.list(prefix))


def test_sweep_leaves_what_people_put_there(store: Store, tmp_path: Path) -> None:
    (tmp_path / "store/raw").mkdir(parents=True)
    for name in ("notes#1", ".hidden.tmp", "x.tmp"):
        (tmp_path / "store/raw" / name).touch()
    assert store.sweep(-1) == []
    assert len(os.listdir(tmp_path / "store/raw")) == 3


def test_an_unwritable_root(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    root = Path("/sys/tripod") if os.geteuid() == 0 else closed / "store"  # root may write anywhere but there
    store = open_store(f"file://{root}")
    for call in (store.put, store.create, store.upload):
        with pytest.raises(UserError, match=rf"{root}.* not permitted|denied; set \$TRIPOD_STORE") as caught:
            call("k", b"1")
        assert "\n" not in str(caught.value)


def test_what_the_system_refuses_obstore_names_the_file(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from steps.lib.store import open_store; store = open_store(sys.argv[1])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try: store.upload('a/k', bytes(2 << 20))\n"
        "except OSError as e: print(e.errno, e.filename, [h.key for h in store.list('')])"
    )
    uri = f"file://{tmp_path}"
    done = subprocess.run([sys.executable, "-c", program, uri], capture_output=True, text=True, check=True)
    assert done.stdout == f"{errno.EFBIG} {tmp_path}/a/k []\n"
    assert list(tmp_path.glob("a/.*")) == []


@pytest.mark.skipif(sys.platform != "linux", reason="uses /dev/full")
def test_a_full_disk_names_the_file(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.open

    def full(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        return real("/dev/full", os.O_WRONLY) if path.endswith(".tmp") else real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", full)
    for call in (store.put, store.create):
        with pytest.raises(OSError, match="No space left") as caught:
            call("a/k", b"1")
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == f"{tmp_path}/store/a/k"
