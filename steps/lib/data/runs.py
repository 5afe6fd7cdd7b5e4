"""Documents on their way: files of documents sorted by digest, so that memory stays bounded.

A process collects documents until it holds RUN_BYTES of text, drops those it has twice, and writes
a run: an Arrow file with columns digest, text, source, sorted by digest, a batch for each of 2**bits
equal ranges of digests. Merging reads the same range of every run (docs.py).

A digest is the sha256 of the clean text, seen as four big-endian 64-bit words: the first orders and
partitions, the second chooses the held-out documents.
"""

import hashlib
import uuid
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RUN_BYTES = 32 << 20
DIGEST_BYTES = 32
WORD_VALUES = 1 << 64
SCHEMA = pa.schema(
    [("digest", pa.binary(DIGEST_BYTES)), ("text", pa.large_string()), ("source", pa.large_string())]
)  # fmt: skip


class RunWriter:
    """Collects documents and writes them as runs below `folder`, in 2**bits batches each."""

    def __init__(self, folder: Path, bits: int):
        self._folder, self._bits = folder, bits
        self._held: dict[bytes, tuple[bytes, str]] = {}
        self._held_bytes = 0
        self.paths: list[Path] = []
        """The runs written."""

    def add(self, text: bytes, source: str) -> bytes:
        """Take one clean document from the file `source`; returns its digest."""
        digest = hashlib.sha256(text).digest()
        there = self._held.get(digest)
        if there is None:
            self._held[digest] = (text, source)
            self._held_bytes += len(text)
            if self._held_bytes >= RUN_BYTES:
                self.flush()
        elif source < there[1]:
            self._held[digest] = (text, source)
        return digest

    def flush(self) -> None:
        """Write what is held."""
        if not self._held:
            return
        digests = sorted(self._held)
        rows = [self._held[digest] for digest in digests]
        columns = [
            pa.array(digests, SCHEMA.field("digest").type),
            pa.array([text for text, _ in rows], pa.large_string()),
            pa.array([source for _, source in rows], pa.large_string()),
        ]
        self._held, self._held_bytes = {}, 0
        path = self._folder / f"{uuid.uuid4().hex}.run"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            inner = np.arange(1, 1 << self._bits, dtype=np.uint64) << np.uint64(64 - self._bits if self._bits else 0)
            cuts = [0, *np.searchsorted(words_of(columns[0])[:, 0], inner).tolist(), len(rows)]
            for start, stop in pairwise(cuts):
                writer.write_batch(batch.slice(start, stop - start))
        self.paths.append(path)


@dataclass(frozen=True)
class Part:
    """n documents, sorted by digest."""

    batch: Any
    """Columns as in SCHEMA."""
    words: npt.NDArray[np.uint64]
    """[n, 4]: the digests."""

    def where(self, kept: npt.NDArray[np.bool_]) -> "Part":
        """The documents that the mask keeps."""
        return self if kept.all() else Part(self.batch.filter(pa.array(kept)), self.words[kept])


class Run:
    """An open run. Reads what is asked for (a mapped file would count as memory in use)."""

    def __init__(self, path: Path):
        self._reader = pa.ipc.open_file(pa.OSFile(str(path)))

    def between(self, start: int, stop: int) -> Part:
        """The documents whose first word lies in [start, stop)."""
        num_batches = self._reader.num_record_batches
        width = WORD_VALUES // num_batches
        batches = [self._reader.get_batch(i) for i in range(start // width, -(-stop // width))]
        batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        words = words_of(batch.column("digest"))
        low = int(np.searchsorted(words[:, 0], np.uint64(start)))
        high = int(np.searchsorted(words[:, 0], np.uint64(stop - 1), side="right"))
        return Part(batch.slice(low, high - low), words[low:high])


def words_of(digests: Any) -> npt.NDArray[np.uint64]:
    """[n, 4] from a fixed-size binary array of n digests."""
    raw = np.frombuffer(digests.buffers()[1], dtype=">u8")
    start = digests.offset * DIGEST_BYTES // 8
    return raw[start : start + len(digests) * 4].reshape(-1, 4).astype(np.uint64)


def held_out_word(digest: bytes) -> int:
    """The word of a digest that decides between training and held-out."""
    return int.from_bytes(digest[8:16], "big")
