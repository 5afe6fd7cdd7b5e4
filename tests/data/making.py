"""What the tests of the data steps share: small sources, and what came of them."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from steps import ingest
from steps.lib.folder import Manifest, load
from steps.lib.store import Store
from tests.steps.calling import context


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A folder with these files."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def lines(*records: Any) -> bytes:
    """JSONL of the records; bytes are taken as they are."""
    return b"".join((r if isinstance(r, bytes) else json.dumps(r).encode()) + b"\n" for r in records)


def read_file(store: Store, prefix: str, name: str) -> bytes:
    """The file `name` of a published folder."""
    return store.get(next(file.key for file in load(store, prefix).files if file.name == name))


def gz(data: bytes) -> bytes:
    """Gzip, the same bytes each time."""
    return gzip.compress(data, mtime=0)


def zst(data: bytes) -> bytes:
    """One zstd frame."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def take(store: Store, source: Path | str, *, workers: int = 1, **params: Any) -> tuple[ingest.Result, Manifest]:
    """Ingest `source`, nothing held out unless asked; the result and the manifest of the docs folder."""
    values = {"source": str(source), "holdout_fraction": 0, **params}
    result = ingest.run(ingest.Params(**values), context(store, workers=workers))
    return result, load(store, result.docs, kind="docs")


def documents(store: Store, manifest: Manifest, split: str = "") -> list[tuple[str, str]]:
    """(text, source) of all documents in their order, read with Arrow alone."""
    rows: list[tuple[str, str]] = []
    for file in manifest.files:
        if split in ("", file.meta["split"]):
            table = pa.ipc.open_file(store.get(file.key)).read_all()
            rows += zip(table["text"].to_pylist(), table["source"].to_pylist(), strict=True)
    return rows


def texts(store: Store, manifest: Manifest) -> list[str]:
    """The texts, sorted."""
    return sorted(text for text, _ in documents(store, manifest))


def reject_counts(manifest: Manifest) -> dict[str, int]:
    """Rejects by reason."""
    return {reason: found["count"] for reason, found in manifest.meta["rejects"].items()}
