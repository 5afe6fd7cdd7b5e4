"""Documents on their way: files of documents sorted by digest, so that memory stays bounded.

A process collects documents until it holds RUN_BYTES of text, drops those it has twice, and writes
a run: an Arrow file of one batch with columns digest, text, source, sorted by digest. Merging reads
the same range of digests of every run (docs.py).

A digest is the sha256 of the clean text, seen as four big-endian 64-bit words: the first orders and
partitions, the second chooses the held-out documents.
"""

import hashlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

RUN_BYTES = 32 << 20
DIGEST_BYTES = 32
SCHEMA = pa.schema(
    [("digest", pa.binary(DIGEST_BYTES)), ("text", pa.large_string()), ("source", pa.large_string())]
)  # fmt: skip


class RunWriter:
    """Collects documents and writes them as runs below `folder`."""

    def __init__(self, folder: Path):
        self._folder = folder
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
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        self.paths.append(path)


@dataclass(frozen=True)
class Run:
    """An open run, mapped into memory; n documents."""

    batch: Any
    words: npt.NDArray[np.uint64]
    """[n, 4]: the digests."""

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Map a run."""
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        return cls(batch, words_of(batch.column("digest")))

    def between(self, start: int, stop: int) -> "Run":
        """The documents whose first word lies in [start, stop); no bytes move."""
        first = self.words[:, 0]
        low = int(np.searchsorted(first, np.uint64(start)))
        high = len(first) if stop >= 1 << 64 else int(np.searchsorted(first, np.uint64(stop)))
        return Run(self.batch.slice(low, high - low), self.words[low:high])

    def where(self, kept: npt.NDArray[np.bool_]) -> "Run":
        """The documents that the mask keeps."""
        return self if kept.all() else Run(self.batch.filter(pa.array(kept)), self.words[kept])


def words_of(digests: Any) -> npt.NDArray[np.uint64]:
    """[n, 4] from a fixed-size binary array of n digests."""
    raw = np.frombuffer(digests.buffers()[1], dtype=">u8")
    start = digests.offset * DIGEST_BYTES // 8
    return raw[start : start + len(digests) * 4].reshape(-1, 4).astype(np.uint64)


def held_out_word(digest: bytes) -> int:
    """The word of a digest that decides between training and held-out."""
    return int.from_bytes(digest[8:16], "big")
