"""Published folders: whole or not there, never changed, checked against their manifest."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from steps.lib import folder
from steps.lib.errors import UserError
from steps.lib.store import Store

PREFIX = "datasets/corpus/v1"
CONTENT = {"a.bin": b"first", "sub/b.bin": b"second" * 1000}


def state(store: Store) -> dict[str, tuple[str, bytes]]:
    """Everything in the store with its tag: equal states were not even rewritten."""
    return {head.key: (head.tag, store.get(head.key)) for head in store.list("")}


def publish(store: Store, content: dict[str, bytes] = CONTENT, **more: object) -> folder.Manifest:
    return folder.publish(store, PREFIX, kind="dataset", content=content, **more)  # type: ignore[arg-type]


def test_the_manifest_tells_what_is_there(each: Store, tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(CONTENT["sub/b.bin"])
    manifest = folder.publish(
        each, PREFIX, kind="dataset", content={"a.bin": b"first", "sub/b.bin": tmp_path / "b"}, meta={"n": 2}
    )
    assert json.loads(each.get(f"{PREFIX}/manifest.json")) == manifest.model_dump(mode="json")
    assert {f.name: (f.key, f.size, f.sha256) for f in manifest.files} == {
        name: (f"{PREFIX}/{name}", len(data), hashlib.sha256(data).hexdigest()) for name, data in CONTENT.items()
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
    folder.publish(store, "datasets/corpus/v1", kind="dataset", content={sys.argv[3]: text})
    print("published")
except UserError as e:
    print(e)
"""


def publish_at_once(uri: str, texts: tuple[str, str], names: tuple[str, str]) -> list[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [
        subprocess.Popen([sys.executable, "-c", PUBLISH, uri, text, name], **pipes)  # type: ignore[call-overload]
        for text, name in zip(texts, names, strict=True)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    return [racer.communicate(timeout=60)[0].strip() for racer in racers]


def test_two_processes_publish_different_content_at_once(each: Store, uri: str) -> None:
    said = publish_at_once(uri, ("one", "two"), ("1.bin", "2.bin"))
    assert said.count("published") == 1, said
    assert "exists with another digest" in said[1 - said.index("published")]
    assert folder.check(each, PREFIX, full=True) == ""
    assert [f.name for f in folder.load(each, PREFIX).files] == [("1.bin", "2.bin")[said.index("published")]]


def test_two_processes_publish_the_same_at_once(each: Store, uri: str) -> None:
    assert publish_at_once(uri, ("one", "one"), ("1.bin", "1.bin")) == ["published", "published"]
    assert folder.check(each, PREFIX, full=True) == ""


def test_check_finds_what_is_wrong(each: Store) -> None:
    assert folder.check(each, PREFIX) == f"{PREFIX}: no such folder in {each.uri}"
    publish(each)
    assert folder.check(each, PREFIX) == ""
    each.upload(f"{PREFIX}/a.bin", b"FIRST")
    assert folder.check(each, PREFIX) == ""
    assert folder.check(each, PREFIX, full=True) == f"{PREFIX}/a.bin differs from the digest in its manifest"
    each.upload(f"{PREFIX}/a.bin", b"firs")
    assert folder.check(each, PREFIX) == f"{PREFIX}/a.bin has 4 bytes, its manifest says 5"
    each.delete([f"{PREFIX}/a.bin"])
    assert folder.check(each, PREFIX) == f"{PREFIX}/a.bin is missing"
    each.put(f"{PREFIX}/manifest.json", b'{"kind":')
    assert f"{PREFIX}/manifest.json: unreadable" in folder.check(each, PREFIX)


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
    each.upload(f"{PREFIX}/a.bin", b"FIRST")
    with pytest.raises(UserError, match=r"a\.bin differs from the digest"):
        folder.download(each, PREFIX, tmp_path / "again")
