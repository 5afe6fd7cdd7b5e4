"""Published folders: whole or not there, never changed, checked against their manifest."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from steps.lib import folder
from steps.lib.errors import TemporaryError, UserError
from steps.lib.store import Bytes, Store
from steps.lib.store.file import FileStore

PREFIX = "datasets/corpus/v1"
CONTENT = {"a.bin": b"first", "sub/b.bin": b"second" * 1000}


def state(store: Store) -> dict[str, tuple[str, bytes]]:
    """Everything in the store with its tag: equal states were not even rewritten."""
    return {head.key: (head.tag, store.get(head.key)) for head in store.list("")}


def key_of(store: Store, name: str) -> str:
    """Where a file of the folder is: the one key that ends in its name."""
    (key,) = [head.key for head in store.list(PREFIX) if head.key.endswith(f"/{name}")]
    return key


def publish(store: Store, content: dict[str, bytes] = CONTENT, **more: object) -> folder.Manifest:
    return folder.publish(store, PREFIX, kind="dataset", content=content, **more)  # type: ignore[arg-type]


def test_the_manifest_tells_what_is_there(each: Store, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(CONTENT["sub/b.bin"])
    manifest = folder.publish(
        each, PREFIX, kind="dataset", content={"a.bin": b"first", "sub/b.bin": tmp_path / "b"}, meta={"n": 2}
    )
    assert json.loads(each.get(f"{PREFIX}/manifest.json")) == manifest.model_dump(mode="json")
    assert {f.name: (f.key, f.size, f.sha256) for f in manifest.files} == {
        name: (key_of(each, name), len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items()
    }
    assert folder.load(each, PREFIX, "dataset") == manifest
    assert folder.check(each, PREFIX, full=True) == ""


def test_publishing_the_same_again_touches_nothing(each: Store) -> None:
    first = publish(each)
    before = state(each)
    assert publish(each).digest == first.digest
    assert state(each) == before


@pytest.mark.parametrize("other", [{"a.bin": b"other"}, {"a.bin": b"first"}, {**CONTENT, "c.bin": b"more"}])
def test_other_content_is_refused_and_touches_nothing(each: Store, other: dict[str, bytes]) -> None:
    publish(each)
    before = state(each)
    with pytest.raises(UserError, match=f"{PREFIX} exists with another digest"):
        publish(each, other)
    assert state(each) == before


def test_the_digest_is_of_content_not_of_place(store: Store) -> None:
    here = publish(store)
    there = folder.publish(store, "elsewhere", kind="dataset", content=CONTENT)
    assert here.digest == there.digest
    assert here.digest != folder.publish(store, "x", kind="docs", content=CONTENT).digest
    assert here.digest != folder.publish(store, "y", kind="dataset", content=CONTENT, meta={"n": 1}).digest


PUBLISH = """
import sys
from steps.lib import folder
from steps.lib.errors import UserError
from steps.lib.store import open_store
store, text = open_store(sys.argv[1]), sys.argv[2].encode()
store.head("warm")
print("ready", flush=True)
sys.stdin.readline()
try:
    folder.publish(store, "datasets/corpus/v1", kind="dataset", content={"a.bin": text})
    print("published")
except UserError as e:
    print(e)
"""


def publish_at_once(uri: str, *texts: str) -> list[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [
        subprocess.Popen([sys.executable, "-c", PUBLISH, uri, text], **pipes)  # type: ignore[call-overload]
        for text in texts
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    return [racer.communicate(timeout=60)[0].strip() for racer in racers]


def test_two_processes_publish_different_content_at_once(each: Store, uri: str) -> None:
    said = publish_at_once(uri, "one", "two")
    assert said.count("published") == 1, said
    winner = said.index("published")
    assert "exists with another digest" in said[1 - winner]
    assert folder.check(each, PREFIX, full=True) == ""
    assert each.get(key_of(each, "a.bin")) == (b"one", b"two")[winner]


def test_two_processes_publish_the_same_at_once(each: Store, uri: str) -> None:
    assert publish_at_once(uri, "one", "one") == ["published", "published"]
    assert folder.check(each, PREFIX, full=True) == ""


def test_check_finds_what_is_wrong(each: Store) -> None:
    assert folder.check(each, PREFIX) == f"{PREFIX}: no such folder in {each.uri}"
    publish(each)
    key = key_of(each, "a.bin")
    assert folder.check(each, PREFIX) == ""
    each.upload(key, b"FIRST")
    assert folder.check(each, PREFIX) == ""
    assert folder.check(each, PREFIX, full=True) == f"{key} differs from the digest in its manifest"
    each.upload(key, b"firs")
    assert folder.check(each, PREFIX) == f"{key} has 4 bytes, its manifest says 5"
    each.delete([key])
    assert folder.check(each, PREFIX) == f"{key} is missing"
    each.put(f"{PREFIX}/manifest.json", b'{"kind":')
    assert f"{PREFIX}/manifest.json: unreadable" in folder.check(each, PREFIX)


def test_publishing_again_mends_a_broken_folder(each: Store) -> None:
    manifest = publish(each)
    key = key_of(each, "a.bin")
    for harm in (lambda: each.delete([key]), lambda: each.upload(key, b"cut")):
        harm()
        assert publish(each) == manifest
        assert folder.check(each, PREFIX, full=True) == ""


def test_blobs_are_named_by_content(each: Store) -> None:
    blob = folder.put_blob(each, b"content")
    assert blob.key == "blobs/sha256/" + hashlib.sha256(b"content").hexdigest()
    before = state(each)
    assert folder.put_blob(each, b"content") == blob
    assert state(each) == before
    assert folder.check(each, blob.key, full=True) == ""
    each.upload(blob.key, b"contenT")
    assert folder.check(each, blob.key, full=True) == f"{blob.key} differs from the digest in its manifest"
    each.upload(blob.key, b"cut")
    assert folder.put_blob(each, b"content") == blob
    assert folder.check(each, blob.key, full=True) == ""


def test_a_manifest_may_name_blobs(store: Store) -> None:
    blob = folder.put_blob(store, b"shard")
    publish(store, {}, files=[blob.model_copy(update={"name": "shard-0"})])
    assert folder.check(store, PREFIX, full=True) == ""
    store.delete([blob.key])
    assert folder.check(store, PREFIX) == f"{blob.key} is missing"


def test_download_verifies(each: Store, tmp_path: Path) -> None:
    publish(each)
    target = tmp_path / "target"
    folder.download(each, PREFIX, target, "dataset")
    assert {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()} == CONTENT
    with pytest.raises(UserError, match="is a dataset, expected a model"):
        folder.download(each, PREFIX, target, "model")
    each.upload(key_of(each, "a.bin"), b"FIRST")
    with pytest.raises(UserError, match=r"a\.bin differs from the digest"):
        folder.download(each, PREFIX, tmp_path / "again")
    each.delete([key_of(each, "a.bin")])
    with pytest.raises(UserError, match=r"a\.bin is missing; run again what made it"):
        folder.download(each, PREFIX, tmp_path / "third")


def test_what_is_read_is_checked(each: Store) -> None:
    publish(each)
    file = next(f for f in folder.load(each, PREFIX).files if f.name == "a.bin")
    assert folder.read(each, file) == CONTENT["a.bin"]
    each.upload(file.key, b"FIRST")
    with pytest.raises(UserError, match=r"a\.bin differs from the digest in its manifest; remove that object"):
        folder.read(each, file)
    each.delete([file.key])
    with pytest.raises(UserError, match=r"a\.bin is missing"):
        folder.read(each, file)


def test_a_manifest_that_cannot_be_read_says_what_to_do(store: Store) -> None:
    store.put(f"{PREFIX}/{folder.MANIFEST}", b"{")
    with pytest.raises(UserError, match=r"manifest\.json: unreadable, .*; remove that object, then run again"):
        folder.load(store, PREFIX)


def test_a_twin_that_publishes_in_between_wins_whole(store: Store) -> None:
    class Slow(FileStore):
        """Somebody else publishes while this one is about to upload."""

        def upload(self, key: str, source: Path | Bytes) -> int:
            publish(store, {"a.bin": b"the twin's"})
            return super().upload(key, source)

    with pytest.raises(UserError, match="exists with another digest"):
        publish(Slow(store.uri), {"a.bin": b"too late"})
    assert folder.check(store, PREFIX, full=True) == ""
    assert [store.get(h.key) for h in store.list(PREFIX) if h.key.endswith("a.bin")] == [b"the twin's"]


@pytest.mark.parametrize("blob", [False, True])
def test_a_file_that_changes_while_it_is_published_is_not(blob, tmp_path):
    source = tmp_path / "grows"
    source.write_bytes(b"before")

    class Growing(FileStore):
        def upload(self, key, source):
            source.write_bytes(b"and after")
            return super().upload(key, source)

    store = Growing(f"file://{tmp_path}/store")
    with pytest.raises(TemporaryError, match=rf"{source}: changed while it was published; nothing was published"):
        folder.put_blob(store, source) if blob else folder.publish(store, "docs/x", kind="docs", content={"a": source})
    assert list(store.list("")) == []
