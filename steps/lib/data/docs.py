"""A docs folder: unique documents in the order of their digests, by split and partition.

    docs/<version>/manifest.json     files train-00000.arrow ... heldout-00000.arrow ..., as blobs
    a file                           Arrow IPC, batches of about 8 MiB, columns text and source
    meta of a file                   split, num_documents, text_bytes
    meta of the folder               documents (digest of the document set), counts, rejects

A partition is a range of digests; their number depends on the bytes of text alone. `documents` is
sha256 over the digests of the documents in order, training before held-out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from steps.lib.data.gather import ONE_PROCESS_BYTES, RANGE_BYTES, Counts, bits_for
from steps.lib.data.pool import map_processes
from steps.lib.data.runs import WORD_VALUES, Part, Run
from steps.lib.digest import digest_of
from steps.lib.errors import UserError
from steps.lib.folder import File, Manifest, publish, put_blob, sha256_file
from steps.lib.store import Store

Split = Literal["train", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "heldout")
PARTITION_BYTES = 256 << 20
"""Text of one partition, the unit that tokenizing fans out over."""
_MAX_PARTITION_BITS = 10
_SCHEMA = pa.schema([("text", pa.large_string()), ("source", pa.large_string())])


class MergedFile(NamedTuple):
    """One file of documents, still local."""

    path: Path
    split: Split
    num_documents: int
    text_bytes: int


@dataclass(frozen=True)
class _Task:
    runs: tuple[Path, ...]
    split: Split
    threshold: int
    """A document whose second word is smaller is held out."""
    start: int
    stop: int
    """The range of first words."""
    num_batches: int
    path: Path


def merge(
    runs: Sequence[Path], counts: Counts, holdout_fraction: float, folder: Path, *, workers: int
) -> list[MergedFile]:
    """Merge runs into files of documents below `folder`, in the folder's order; empty ones are left out."""
    threshold = held_out_threshold(counts.held_out_words, holdout_fraction)
    held_out_bytes = counts.text_bytes * threshold // WORD_VALUES
    sizes = {"train": counts.text_bytes - held_out_bytes, "heldout": held_out_bytes}
    splits = SPLITS if threshold else SPLITS[:1]
    tasks = [task for split in splits for task in _tasks(tuple(sorted(runs)), split, threshold, sizes[split], folder)]
    if counts.text_bytes <= ONE_PROCESS_BYTES:
        workers = 1
    return [file for file in map_processes(_merge_partition, tasks, workers=workers) if file.num_documents]


def held_out_threshold(words: tuple[int, int], fraction: float) -> int:
    """Documents with a smaller word are held out.

    Both splits get at least one of two or more documents, where `fraction` is above 0.

    Args:
        words: smallest and largest word over all documents.
    """
    smallest, largest = words
    threshold = int(fraction * WORD_VALUES)
    return min(max(threshold, smallest + 1), largest) if fraction else 0


def publish_docs(
    store: Store, merged: Sequence[MergedFile], meta: dict[str, Any], *, workers: int
) -> tuple[str, Manifest]:
    """Publish files of documents as docs/<version>; the version covers files and meta.

    Returns:
        The folder's prefix and its manifest.
    """
    with ThreadPoolExecutor(workers) as pool:
        blobs = list(pool.map(lambda file: put_blob(store, file.path), merged))
    files = []
    numbers = {split: 0 for split in SPLITS}
    for file, blob in zip(merged, blobs, strict=True):
        name = f"{file.split}-{numbers[file.split]:05d}.arrow"
        numbers[file.split] += 1
        file_meta = {"split": file.split, "num_documents": file.num_documents, "text_bytes": file.text_bytes}
        files.append(blob.model_copy(update={"name": name, "meta": file_meta}))
    meta = {"documents": _documents_digest(merged), **meta}
    prefix = f"docs/{Manifest(kind='docs', files=tuple(files), meta=meta).digest[:16]}"
    return prefix, publish(store, prefix, kind="docs", files=files, meta=meta)


def file_of(manifest: Manifest, prefix: str, name: str) -> File:
    """The file `name` of a published folder.

    Raises:
        UserError: it has no such file.
    """
    for file in manifest.files:
        if file.name == name:
            return file
    raise UserError(f"{prefix}: no file {name!r}, it has {', '.join(f.name for f in manifest.files)}")


def read_texts(store: Store, file: File, scratch: Path) -> Iterator[Any]:
    """The documents of one file, in order: a large_string array for each batch.

    Raises:
        UserError: the file differs from its digest.
    """
    path = scratch / file.name
    store.download(file.key, path)
    try:
        if sha256_file(path) != file.sha256:
            raise UserError(f"{file.key}: differs from the digest in its manifest; run ingest again")
        with pa.OSFile(str(path)) as source:
            reader = pa.ipc.open_file(source)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i).column("text")
    finally:
        path.unlink(missing_ok=True)


def _tasks(runs: tuple[Path, ...], split: Split, threshold: int, text_bytes: int, folder: Path) -> Iterator[_Task]:
    bits = min(bits_for(text_bytes, PARTITION_BYTES), _MAX_PARTITION_BITS)
    num_batches = 1 << max(bits_for(text_bytes, RANGE_BYTES) - bits, 0)
    width = WORD_VALUES >> bits
    for i in range(1 << bits):
        yield _Task(runs, split, threshold, i * width, (i + 1) * width, num_batches, folder / f"{split}-{i}.arrow")


def _merge_partition(task: _Task) -> MergedFile:
    """Write one partition and, beside it, the digests of its documents."""
    runs = [Run(path) for path in task.runs]
    width = (task.stop - task.start) // task.num_batches
    num_documents = text_bytes = 0
    digests_path = _digests_path(task.path)
    with (
        pa.OSFile(str(task.path), "wb") as sink,
        pa.ipc.new_file(sink, _SCHEMA) as writer,
        digests_path.open("wb") as out,
    ):
        for start in range(task.start, task.stop, width):
            merged = _merge_range([_of_split(run.between(start, start + width), task) for run in runs])
            if len(merged.words):
                writer.write_batch(merged.batch.select(["text", "source"]))
                out.write(merged.words.astype(">u8").tobytes())
                num_documents += len(merged.words)
                text_bytes += _text_bytes(merged.batch.column("text"))
    return MergedFile(task.path, task.split, num_documents, text_bytes)


def _of_split(part: Part, task: _Task) -> Part:
    held_out = part.words[:, 1] < np.uint64(task.threshold)
    return part.where(held_out if task.split == "heldout" else ~held_out)


def _merge_range(parts: list[Part]) -> Part:
    """The unique documents of a range of digests, sorted.

    Of copies the one from the first source file by name stays.
    """
    words = np.concatenate([part.words for part in parts])  # [n, 4]
    order = np.lexsort(words.T[::-1])  # by all words, the first counts most; stable
    same = np.zeros(len(order), bool)
    same[1:] = (words[order[1:]] == words[order[:-1]]).all(axis=1)
    kept = np.ones(len(words), bool)
    if same.any():
        sources = pa.chunked_array([part.batch.column("source") for part in parts])
        for copies in np.split(order, np.flatnonzero(~same))[1:]:
            if len(copies) > 1:
                kept[copies] = False
                kept[min(copies, key=lambda row: sources[int(row)].as_py())] = True
    bounds = np.cumsum([0, *(len(part.words) for part in parts)])
    chosen = [part.where(kept[a:b]) for part, (a, b) in zip(parts, pairwise(bounds), strict=True)]
    words = words[kept]
    order = np.lexsort(words.T[::-1])
    table = pa.concat_batches([part.batch for part in chosen])
    return Part(table.take(pa.array(order)), words[order])


def _text_bytes(texts: Any) -> int:
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return int(offsets[-1] - offsets[0])


def _digests_path(path: Path) -> Path:
    return path.with_suffix(".digests")


def _documents_digest(merged: Sequence[MergedFile]) -> str:
    """Names the document set and its split, whatever the partitions."""
    digests = {split: hashlib.sha256() for split in SPLITS}
    for file in merged:
        digests[file.split].update(_digests_path(file.path).read_bytes())
    return digest_of({split: digest.hexdigest() for split, digest in digests.items()})
