"""Published folders: files under one prefix, and a manifest that is written last.

    <prefix>/<digest>/<file> ...   content, any order; the digest is of all of it
    <prefix>/manifest.json         last: its existence means that the folder is whole

A manifest may also name content elsewhere in the store (`key`), as a dataset names its shards in
blobs/sha256/, so that publishing moves no bytes. Nothing under a published prefix ever changes: of
two that publish different content at once each writes below its own digest, and one manifest wins.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib.digest import canonical_json, digest_of, sha256_hex
from steps.lib.errors import TemporaryError, TripodError, UserError
from steps.lib.store import Bytes, ConflictError, NotFoundError, Store

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
AGAIN = "remove that object, then run again what made it"
"""The way out of damage, for messages."""
_READ_BYTES = 64 << 20
_PIECE_BYTES = 1 << 20


class File(BaseModel):
    """One file of a published folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Unique in the folder."""
    key: str
    """Where it is in the store."""
    size: int
    """Bytes."""
    sha256: str
    meta: dict[str, Any] = {}
    """What the kind of folder keeps for each file (counts, offsets)."""


class Manifest(BaseModel):
    """What a published folder holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    kind: str
    """docs, tokenizer, dataset, checkpoint, model, ..."""
    files: tuple[File, ...]
    meta: dict[str, Any] = {}

    @property
    def digest(self) -> str:
        """Names the content (names, sizes, digests, meta), not where it is."""
        files = [f.model_dump(exclude={"key"}) for f in self.files]
        return digest_of({"kind": self.kind, "files": files, "meta": self.meta})


def put_blob(store: Store, source: Path | Bytes) -> File:
    """Upload content under its own digest, unless it is there. The File's name is the digest."""
    stamp = _stamp(source)
    sha256 = sha256_file(source) if isinstance(source, Path) else sha256_hex(source)
    size = source.stat().st_size if isinstance(source, Path) else memoryview(source).nbytes
    key = f"blobs/sha256/{sha256}"
    head = store.head(key)
    if head is None or head.size != size:
        store.upload(key, source)
        if _stamp(source) != stamp:
            store.delete([key])
            raise _changed(source)
    return File(name=sha256, key=key, size=size, sha256=sha256)


def publish(
    store: Store,
    prefix: str,
    *,
    kind: str,
    content: Mapping[str, Path | Bytes] | None = None,
    files: Iterable[File] = (),
    meta: dict[str, Any] | None = None,
) -> Manifest:
    """Upload `content` (file name -> bytes or local file) below `prefix`, then the manifest.

    Publishing the same again uploads only what has gone missing since.

    Args:
        files: content that is in the store already.

    Raises:
        UserError: `prefix` holds another folder already.
        TemporaryError: a local file changed meanwhile.
    """
    sources = dict(sorted((content or {}).items()))
    stamps = {name: _stamp(source) for name, source in sources.items()}
    manifest = Manifest(kind=kind, files=(*files, *_files_of(prefix, sources)), meta=meta or {})
    if store.head(f"{prefix}/{MANIFEST}") is None:  # else not one byte below the prefix is touched
        keys = {file.key: sources[file.name] for file in manifest.files if file.name in sources}
        for key, source in keys.items():
            store.upload(key, source)
        for name, source in sources.items():
            if _stamp(source) != stamps[name]:
                store.delete(keys)
                raise _changed(source)
        try:
            store.create(f"{prefix}/{MANIFEST}", canonical_json(manifest.model_dump(mode="json")))
            return manifest
        except ConflictError:
            if load(store, prefix).digest != manifest.digest:  # another was faster; nobody will name ours
                store.delete(keys)
    there = load(store, prefix)
    if there.digest != manifest.digest:
        raise UserError(
            f"{prefix} exists with another digest: there {there.digest[:16]}, new "
            f"{manifest.digest[:16]}; a published version never changes, choose another name"
        )
    for file in there.files:
        if file.name in sources and ((head := store.head(file.key)) is None or head.size != file.size):
            store.upload(file.key, sources[file.name])
    return there


def load(store: Store, prefix: str, kind: str | None = None) -> Manifest:
    """The manifest of a published folder.

    Raises:
        UserError: there is none, it is of another kind, or it cannot be read.
    """
    try:
        manifest = Manifest.model_validate_json(store.get(f"{prefix}/{MANIFEST}"))
    except NotFoundError as e:
        raise UserError(f"{prefix}: no such {kind or 'folder'} in {store.uri}") from e
    except ValidationError as e:
        raise UserError(f"{prefix}/{MANIFEST}: unreadable, {e.errors()[0]['msg']}; {AGAIN}") from e
    if kind and manifest.kind != kind:
        raise UserError(f"{prefix}: is a {manifest.kind}, expected a {kind}")
    return manifest


def check(store: Store, prefix: str, *, full: bool = False) -> str:
    """What is wrong with a folder or a single blob, in one line; "" when it is whole.

    Args:
        full: read and hash every file too.
    """
    try:
        files = (_blob(store, prefix),) if prefix.startswith("blobs/") else load(store, prefix).files
    except TripodError as e:
        return str(e)
    return next((problem for file in files if (problem := check_file(store, file, full=full))), "")


def check_file(store: Store, file: File, *, full: bool = False) -> str:
    """As `check`, for one file of a folder."""
    head = store.head(file.key)
    if head is None:
        return f"{file.key} is missing"
    if head.size != file.size:
        return f"{file.key} has {head.size} bytes, its manifest says {file.size}"
    if full and _sha256_of(store, file) != file.sha256:
        return f"{file.key} differs from the digest in its manifest"
    return ""


def download(store: Store, prefix: str, target: Path, kind: str | None = None) -> Manifest:
    """Copy every file of the folder into the local folder `target`, by its name; checks digests.

    Raises:
        UserError: no such folder, or a file differs from its digest.
    """
    manifest = load(store, prefix, kind)
    for file in manifest.files:
        path = target / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with _needed(file):
            store.download(file.key, path)
        if sha256_file(path) != file.sha256:
            raise _differs(file)
    return manifest


def read(store: Store, file: File) -> bytes:
    """The bytes of one small file of a folder, checked against its digest.

    Raises:
        UserError: it is gone, or differs.
    """
    with _needed(file):
        data = store.get(file.key)
    if sha256_hex(data) != file.sha256:
        raise _differs(file)
    return data


def sha256_file(path: Path) -> str:
    """Hex sha256 of a local file, a large one read in pieces."""
    import hashlib

    with path.open("rb") as f:
        head = f.read(_PIECE_BYTES)
        if len(head) < _PIECE_BYTES:  # file_digest would clear a buffer larger than most files first
            return hashlib.sha256(head).hexdigest()
        f.seek(0)
        return hashlib.file_digest(f, "sha256").hexdigest()


@contextmanager
def _needed(file: File) -> Iterator[None]:
    try:
        yield
    except NotFoundError as e:
        raise UserError(f"{file.key} is missing; run again what made it") from e


def _differs(file: File) -> UserError:
    return UserError(f"{file.key} differs from the digest in its manifest; {AGAIN}")


def _stamp(source: Path | Bytes) -> tuple[int, ...]:
    """Changes when a file does; what was hashed must be what is uploaded."""
    if not isinstance(source, Path):
        return ()
    status = source.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _changed(source: Path | Bytes) -> TemporaryError:
    assert isinstance(source, Path)
    return TemporaryError(
        f"{source}: changed while it was published; nothing was published, run the same command again"
    )


def _files_of(prefix: str, sources: Mapping[str, Path | Bytes]) -> list[File]:
    sizes, digests = {}, {}
    for name, source in sources.items():
        digests[name] = sha256_file(source) if isinstance(source, Path) else sha256_hex(source)
        sizes[name] = source.stat().st_size if isinstance(source, Path) else memoryview(source).nbytes
    home = f"{prefix}/{digest_of(digests)[:16]}"
    return [File(name=name, key=f"{home}/{name}", size=sizes[name], sha256=digests[name]) for name in sources]


def _blob(store: Store, key: str) -> File:
    head = store.head(key)
    if head is None:
        raise NotFoundError(f"{key} is missing")
    return File(name=key, key=key, size=head.size, sha256=key.rpartition("/")[2])


def _sha256_of(store: Store, file: File) -> str:
    import hashlib

    digest = hashlib.sha256()
    for start in range(0, file.size, _READ_BYTES):
        digest.update(store.read(file.key, start, min(_READ_BYTES, file.size - start)))
    return digest.hexdigest()
