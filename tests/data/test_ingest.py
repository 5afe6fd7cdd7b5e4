"""Ingest: the same output whatever the order, workers and place; what stops it (cases D09, S03)."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steps import ingest
from steps.lib.data import docs as docs_module, gather
from steps.lib.data.docs import held_out_threshold
from steps.lib.errors import RejectedError, UserError
from steps.lib.store import open_store
from tests.data.making import documents, gz, lines, reject_counts, take, texts, write
from tests.steps.calling import context


def some_files() -> dict[str, bytes]:
    """Text, JSONL and gzip, with copies and rejects among them."""
    files = {f"t/{i:02d}.txt": f"text number {i % 20} {'x' * i}".encode() for i in range(30)}
    files |= {f"j{i}.jsonl": lines(*({"text": f"{i % 3} row {k}"} for k in range(50)), {"no": i}) for i in range(4)}
    return files | {"z.jsonl.gz": gz(lines({"text": "packed"}, b"broken"))}


def test_documents_are_ordered_by_digest_and_unique(store, tmp_path):
    result, manifest = take(store, write(tmp_path / "in", some_files()))
    found = [text for text, _ in documents(store, manifest)]
    expected = {f"text number {i % 20} {'x' * i}" for i in range(30)} | {
        *(f"{i} row {k}" for i in range(3) for k in range(50)), "packed"
    }  # fmt: skip
    assert found == sorted(expected, key=lambda text: hashlib.sha256(text.encode()).digest())
    assert (result.num_documents, result.num_rejected, result.num_duplicates) == (181, 5, 50)
    assert reject_counts(manifest) == {"bad_json": 1, "missing_field": 4}
    assert manifest.files[0].meta == {
        "split": "train", "num_documents": 181, "text_bytes": sum(len(t.encode()) for t in expected)
    }  # fmt: skip


def test_file_order_workers_and_runs_make_no_difference(store, tmp_path, monkeypatch):
    files = some_files()
    first = take(store, write(tmp_path / "a", files), holdout_fraction=0.3)
    again = write(tmp_path / "b", dict(reversed(files.items())))
    monkeypatch.setattr(gather, "ONE_PROCESS_BYTES", 0)
    monkeypatch.setattr(gather, "PIECE_BYTES", 700)
    monkeypatch.setattr(gather, "RANGE_BYTES", 300)
    monkeypatch.setattr(docs_module, "ONE_PROCESS_BYTES", 0)
    assert take(store, again, workers=1, holdout_fraction=0.3) == first
    assert take(store, again, workers=2, holdout_fraction=0.3) == first


def test_local_folder_and_store_make_no_difference(store, tmp_path, moto_uri):
    files = some_files()
    local = take(store, write(tmp_path / "in", files))
    bucket = open_store(f"{moto_uri}/somewhere")
    for name, data in files.items():
        store.put(f"raw/some/{name}", data)
        bucket.put(f"raw/some/{name}", data)
    assert take(store, "raw/some") == local
    assert take(store, f"{bucket.uri}/raw/some") == local
    assert take(bucket, "raw/some") == local


def test_partitions_and_batches_are_ranges_of_digests(store, tmp_path, monkeypatch):
    folder = write(tmp_path / "in", some_files())
    whole = take(store, folder, holdout_fraction=0.3)[1]
    monkeypatch.setattr(docs_module, "PARTITION_BYTES", 500)
    monkeypatch.setattr(docs_module, "RANGE_BYTES", 200)
    result, manifest = take(store, folder, holdout_fraction=0.3)
    assert len(result.partitions) > 4
    assert list(result.partitions) == sorted(result.partitions, key=lambda name: (name[0] == "h", name))
    for split in ("train", "heldout"):
        assert documents(store, manifest, split) == documents(store, whole, split)
    assert manifest.meta["documents"] == whole.meta["documents"]


def test_held_out_documents_are_chosen_by_their_content(store, tmp_path):
    files = {f"{i}.txt": f"document {i}".encode() for i in range(400)}
    result, manifest = take(store, write(tmp_path / "in", files), holdout_fraction=0.1)
    held_out = {text for text, _ in documents(store, manifest, "heldout")}
    by_hand = {
        text.decode()
        for text in files.values()
        if int.from_bytes(hashlib.sha256(text).digest()[8:16], "big") < 0.1 * 2**64
    }
    assert held_out == by_hand
    assert result.partitions == ("train-00000.arrow", "heldout-00000.arrow")
    assert len(documents(store, manifest, "train")) + len(held_out) == 400


@pytest.mark.parametrize(("words", "fraction", "expected"), [((5, 9), 0.0, 0), ((5, 9), 1e-30, 6), ((5, 9), 0.9, 9)])
def test_both_splits_get_a_document(words, fraction, expected):
    assert held_out_threshold(words, fraction) == expected


def test_one_document_is_for_training(store, tmp_path):
    result, _ = take(store, write(tmp_path / "in", {"a.txt": b"alone"}), holdout_fraction=0.9)
    assert result.partitions == ("train-00000.arrow",)


def test_nothing_left_stops_before_publishing(store, tmp_path):
    folder = write(tmp_path / "in", {f"{i}.txt": b"abc" for i in range(5)})
    with pytest.raises(RejectedError, match=r"^0 of 5 left: too_short=5$"):
        take(store, folder, clean={"min_chars": 10, "max_reject_rate": 1})
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no files"):
        take(store, tmp_path / "empty")
    with pytest.raises(UserError, match="no such folder"):
        take(store, tmp_path / "absent")
    with pytest.raises(UserError, match=r"none of its 5 files matches include \['\*\.md'\]"):
        take(store, folder, include=("*.md",))
    with pytest.raises(RejectedError, match="every file is empty"):
        take(store, write(tmp_path / "zero", {"a.txt": b""}))
    assert list(store.list("docs")) == []
    assert list(store.list("blobs")) == []


def test_an_empty_file_beside_a_good_one_is_fine(store, tmp_path):
    result, manifest = take(store, write(tmp_path / "in", {"a.txt": b"", "b.jsonl": b"", "c.txt": b"good"}))
    assert texts(store, manifest) == ["good"]
    assert (result.num_rejected, manifest.meta["num_files"], manifest.meta["num_records"]) == (0, 3, 1)


def test_too_many_rejects_stop_the_run_and_are_named(store, tmp_path):
    data = lines({"text": "good"}, b"bad", b"worse", {"text": None})
    folder = write(tmp_path / "in", {"a.jsonl": data})
    with pytest.raises(RejectedError) as e:
        take(store, folder)
    assert str(e.value) == (
        "3 of 4 records rejected, more than max_reject_rate=0.5: bad_json=2, not_a_string=1; "
        "first a.jsonl:2 'bad', a.jsonl:4 '{\"text\": null}'"
    )
    assert list(store.list("docs")) == []
    assert texts(store, take(store, folder, clean={"max_reject_rate": 0.75})[1]) == ["good"]


def test_other_rejects_are_another_folder_of_the_same_documents(store, tmp_path):
    good = take(store, write(tmp_path / "a", {"a.jsonl": lines({"text": "x"}, {"text": "y"})}))
    other = take(store, write(tmp_path / "b", {"a.jsonl": lines({"text": "x"}, {"text": "y"}, b"bad")}))
    assert good[0].docs != other[0].docs
    assert good[1].meta["documents"] == other[1].meta["documents"]
    assert [f.key for f in good[1].files] == [f.key for f in other[1].files]


def test_the_standard_library_is_a_source(store):
    params = ingest.Params(source="python:stdlib", include=("json/*.py",))
    result = ingest.run(params, context(store))
    import json

    folder = Path(json.__file__).parent
    assert result.num_documents == len([p for p in folder.glob("*.py") if p.stat().st_size])


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        (signal.SIGTERM, 143, ["error: ended by SIGTERM"]),
        (signal.SIGINT, 130, ["error: cancelled"]),
        (signal.SIGKILL, -9, []),
    ],
)
def test_worker_processes_end_with_the_step(tmp_path, how, code, said):
    block = lines(*({"text": f"{i} " + "word " * 200} for i in range(1000)))
    with (tmp_path / "big.jsonl").open("wb") as f:
        for _ in range(70):
            f.write(block)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "TRIPOD_STORE": f"file://{tmp_path}/store", "TRIPOD_SCRATCH": str(scratch)}
    argv = [sys.executable, "-m", "steps", "ingest", f"--source={tmp_path}/big.jsonl"]
    process = subprocess.Popen(argv, env={**env, "TRIPOD_WORKERS": "2"}, stderr=subprocess.PIPE, text=True)
    try:
        _wait(lambda: len(_children(process.pid)) >= 2, "workers")
        workers = _children(process.pid)
        process.send_signal(how)
        error = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == code, error
    _wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "the end of the workers")
    if how != signal.SIGKILL:
        assert error.splitlines() == said
        assert list(scratch.iterdir()) == []
    assert not (tmp_path / "store" / "docs").exists()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait(condition, what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.01)
