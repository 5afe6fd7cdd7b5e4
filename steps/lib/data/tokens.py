"""Token shards: the ids of documents, ready to be read by byte ranges.

    a shard        Arrow IPC file, uncompressed, one batch, one column `tokens`: a list of uint16 or
                   uint32 for each document, which ends with the end-of-text id and holds no other
    its meta       split, num_tokens, num_documents, values_offset: in the file, byte of the first token;
                   all tokens of the shard follow each other from there, little-endian
    a tokens folder   the shards of one partition of a docs folder, and `digests`, 32 bytes a document

A document's digest is sha256 of its tokens as they are stored.
"""

import hashlib
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from steps.lib.dataset import DIGESTS
from steps.lib.errors import UserError
from steps.lib.folder import File, put_blob
from steps.lib.store import Store

_MAX_LIST_TOKENS = (1 << 31) - 1

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def dtype_of(vocab_size: int) -> str:
    """The narrowest dtype that holds every id below `vocab_size`."""
    if vocab_size > 1 << 32:
        raise UserError(f"tokenizer: {vocab_size} entries, allowed are 2**32")
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def end_documents(
    ids: npt.NDArray[np.uint32], offsets: npt.NDArray[np.int64], eos_id: int, dtype: str
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Put the end-of-text id behind every document.

    Args:
        ids: [t], all documents one after the other.
        offsets: [n + 1]: document i is ids[offsets[i] : offsets[i + 1]].

    Returns:
        tokens [t + n] in `dtype`, and offsets [n + 1] into them.
    """
    num_documents = len(offsets) - 1
    offsets = offsets + np.arange(num_documents + 1)
    tokens = np.empty(len(ids) + num_documents, dtype)
    text = np.ones(len(tokens), bool)
    text[offsets[1:] - 1] = False
    tokens[text] = ids
    tokens[~text] = eos_id
    return tokens, offsets


@dataclass
class ShardWriter:
    """Cuts the tokens of one partition into shards and uploads them."""

    store: Store
    folder: Path
    """For temporary files."""
    split: str
    dtype: str
    shard_bytes: int
    """A shard ends at the first document end past this."""
    files: list[File] = field(default_factory=list)
    """The shards so far; their names are their numbers."""
    num_documents: int = 0
    num_tokens: int = 0
    _held: list[tuple[Tokens, npt.NDArray[np.int64]]] = field(default_factory=list)
    _held_bytes: int = 0
    _digests: list[bytes] = field(default_factory=list)

    def add(self, tokens: Tokens, offsets: npt.NDArray[np.int64]) -> None:
        """Take documents: tokens [t], offsets [n + 1]."""
        assert tokens.dtype == self.dtype
        assert offsets[0] == 0
        self._digests += _digests(tokens, offsets)
        start = 0  # document
        while start < len(offsets) - 1:
            room = (self.shard_bytes - self._held_bytes) // tokens.itemsize
            stop = int(np.searchsorted(offsets, offsets[start] + max(room, 1)))
            stop = min(stop, len(offsets) - 1)
            self._hold(tokens[offsets[start] : offsets[stop]], np.diff(offsets[start : stop + 1]))
            start = stop

    def close(self) -> None:
        """Write what is held, and the digests of the documents."""
        self._flush()
        digests = put_blob(self.store, b"".join(self._digests))
        self.files.append(digests.model_copy(update={"name": DIGESTS}))

    def _hold(self, tokens: Tokens, lengths: npt.NDArray[np.int64]) -> None:
        self._held.append((tokens, lengths))
        self._held_bytes += tokens.nbytes
        if self._held_bytes >= self.shard_bytes:
            self._flush()

    def _flush(self) -> None:
        if not self._held:
            return
        tokens = np.concatenate([tokens for tokens, _ in self._held])
        lengths = np.concatenate([lengths for _, lengths in self._held])
        self._held, self._held_bytes = [], 0
        path = self.folder / "shard.arrow"
        values_offset = write_shard(path, tokens, lengths)
        meta = {
            "split": self.split,
            "num_tokens": len(tokens),
            "num_documents": len(lengths),
            "values_offset": values_offset,
        }
        blob = put_blob(self.store, path)
        path.unlink()
        self.files.append(blob.model_copy(update={"name": f"{len(self.files):05d}.arrow", "meta": meta}))
        self.num_tokens += len(tokens)
        self.num_documents += len(lengths)


def write_shard(path: Path, tokens: Tokens, lengths: npt.NDArray[np.int64]) -> int:
    """Write one shard: tokens [t] of documents with `lengths` [n].

    Returns:
        values_offset: where in the file the first token is.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if len(tokens) > _MAX_LIST_TOKENS:
        documents = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    else:
        documents = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(tokens))
    batch = pa.record_batch([documents], names=["tokens"])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pa.memory_map(str(path)) as mapped:
        values = pa.ipc.open_file(mapped).get_batch(0).column(0).values
        start = values.buffers()[1].address - mapped.read_buffer().address
        return int(start)


def _digests(tokens: Tokens, offsets: npt.NDArray[np.int64]) -> list[bytes]:
    raw = memoryview(tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes())
    bounds = (offsets * tokens.itemsize).tolist()
    return [hashlib.sha256(raw[a:b]).digest() for a, b in pairwise(bounds)]
