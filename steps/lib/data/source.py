"""Where raw text comes from: list it, open a file of it, and tell whether it has changed.

    python:stdlib                the running interpreter's standard library
    /folder, file:///folder      a local or mounted folder (or one file)
    raw/name                     below raw/ in the store
    s3://bucket/prefix           objects of any bucket

Sources are small frozen values, so that they travel to worker processes.
"""

import errno
import io
import os
import re
import sysconfig
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO, Protocol

from pydantic import TypeAdapter, ValidationError

from steps.lib.digest import canonical_json, digest_of, sha256_hex
from steps.lib.errors import TemporaryError, UserError
from steps.lib.folder import sha256_file
from steps.lib.store import NotFoundError, Store, open_store

_SKIPPED_FOLDERS = {"python:stdlib": {"site-packages", "dist-packages", "__pycache__"}}
_READ_AHEAD_BYTES = 8 << 20
_RACY_S = 2.0
"""A file changed this shortly before it was hashed may change again within one tick of its mtime."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file of a source."""

    name: str
    """Path below the source, with slashes; bytes that are no UTF-8 are written as \\xNN."""
    path: str
    """What `open` takes: a local path or a store key."""
    size: int
    """Bytes."""
    tag: str
    """Changes whenever the content may have changed; "" for what cannot be read: a link that leads nowhere, a pipe."""


class Source(Protocol):
    """What every source can do. Raises UserError for what is missing or refused."""

    def files(self) -> list[SourceFile]:
        """All files, sorted by name."""

    def open(self, file: SourceFile) -> BinaryIO:
        """A seekable reader of the file's bytes."""

    def tag(self, file: SourceFile) -> str:
        """The file's tag now, "" when it is gone."""

    def content_tags(self, files: Sequence[SourceFile], cache: Store, workers: int) -> list[str]:
        """For each file a text that is equal exactly while the content is."""


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """A local folder, or a single file."""

    root: str
    skipped: frozenset[str] = frozenset()
    """Names of folders that are not entered."""
    keys_only: bool = False
    """The folder is a part of a store: names like .x and x#1 are objects on their way."""

    def files(self) -> list[SourceFile]:
        """All files, sorted by name."""
        root = Path(self.root)
        if root.is_file():
            return [_local_file(self.root, root.name, os.stat(self.root))]
        if not root.is_dir():
            raise UserError(f"source {self.root}: no such folder; set data.source to where the text is")
        files = [_local_file(path, path[len(self.root) :].lstrip("/"), _status(path)) for path in self._walk(self.root)]
        return sorted(files, key=lambda f: f.name)

    def _walk(self, folder: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        """Links are followed, to files and to folders; one to a folder that it lies in has nothing new."""
        real = os.path.realpath(folder)
        if real in above:
            return
        try:
            names = os.listdir(folder)
        except OSError as e:
            raise UserError(f"source {folder}: {e.strerror}") from e
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.isdir(path):
                yield from [path] if self._is_listed(path) else []
            elif name not in self.skipped:
                yield from self._walk(path, (*above, real))

    def _is_listed(self, path: str) -> bool:
        return not self.keys_only or not (os.path.basename(path).startswith(".") or "#" in path)

    def open(self, file: SourceFile) -> BinaryIO:
        """A seekable reader of the file's bytes."""
        return open(file.path, "rb")

    def tag(self, file: SourceFile) -> str:
        """The file's tag now, "" when it is gone."""
        return _tag(_status(file.path))

    def content_tags(self, files: Sequence[SourceFile], cache: Store, workers: int) -> list[str]:
        """sha256 of each file; those whose tag is unchanged come from a table in the store."""
        key = f"records/ingest-files/{sha256_hex(os.fsencode(self.root))[:16]}.json"
        known = _read_table(cache, key)
        unknown = [f for f in files if f.tag not in known.get(f.name, {})]
        now_ns = time.time_ns()
        # handing over one small file costs more than its hash, so each call gets some
        share = min(64, len(unknown) // (4 * workers)) or 1
        with ThreadPoolExecutor(workers) as pool:
            shares = pool.map(_digests, (unknown[at : at + share] for at in range(0, len(unknown), share)))
            digests = [digest for some in shares for digest in some]
        table = {f.name: known[f.name] for f in files if f.name in known}
        table |= {f.name: {f.tag: d} for f, d in zip(unknown, digests, strict=True)}
        settled = {n: t for n, t in table.items() if all(_changed_ns(tag) < now_ns - _RACY_S * 1e9 for tag in t)}
        if settled != known:
            cache.put(key, canonical_json(settled))
        return [table[f.name][f.tag] for f in files]


@dataclass(frozen=True)
class StoreSource:
    """Objects below a prefix of a store."""

    uri: str
    prefix: str

    @cached_property
    def _store(self) -> Store:
        return open_store(self.uri)

    def __getstate__(self) -> dict[str, str]:
        return {"uri": self.uri, "prefix": self.prefix}  # an open store stays in its process

    def files(self) -> list[SourceFile]:
        """All files, sorted by name."""
        start = len(self.prefix) + 1 if self.prefix else 0
        return [
            SourceFile(name=head.key[start:], path=head.key, size=head.size, tag=head.tag)
            for head in self._store.list(self.prefix)
        ]

    def open(self, file: SourceFile) -> BinaryIO:
        """A seekable reader of the file's bytes."""
        return io.BufferedReader(_ObjectReader(self._store, file), _READ_AHEAD_BYTES)

    def tag(self, file: SourceFile) -> str:
        """The file's tag now, "" when it is gone."""
        head = self._store.head(file.path)
        return head.tag if head else ""

    def content_tags(self, files: Sequence[SourceFile], cache: Store, workers: int) -> list[str]:
        """The store's own tags (ETags)."""
        return [f.tag for f in files]


def resolve(source: str, store: Store) -> Source:
    """The Source that `source` names.

    Raises:
        UserError: none of the known forms.
    """
    if source == "python:stdlib":
        return FolderSource(root=sysconfig.get_paths()["stdlib"], skipped=frozenset(_SKIPPED_FOLDERS[source]))
    if source.startswith("/"):
        return FolderSource(root=os.path.normpath(source))
    if source.startswith("file:///"):
        return FolderSource(root=os.path.normpath(source.removeprefix("file://")))
    if source.startswith("raw/"):
        prefix = source.strip("/")
        if store.uri.startswith("file://"):  # so that mtimes count as in any local folder
            return FolderSource(root=f"{store.uri.removeprefix('file://')}/{prefix}", keys_only=True)
        return StoreSource(store.uri, prefix)
    if source.startswith("s3://"):
        return StoreSource(source.rstrip("/"), "")
    here = os.path.abspath(os.path.expanduser(source))
    raise UserError(
        f"source: got {source!r}, allowed are python:stdlib, /folder, file:///folder, s3://bucket/prefix "
        "and raw/NAME in the store"
        + (f"; for the folder that is here: data.source={here}" if source and os.path.isdir(here) else "")
    )


def matching(files: Sequence[SourceFile], include: Sequence[str]) -> list[SourceFile]:
    """The files whose path or name matches one of the shell patterns."""
    pattern = re.compile("|".join(translate(p) for p in include))
    return [f for f in files if pattern.match(f.name) or pattern.match(f.name.rpartition("/")[2])]


def fingerprint_of(source: Source, files: Sequence[SourceFile], cache: Store, workers: int) -> str:
    """Digest of the sorted listing: name, size and content of each file. `cache` keeps digests of local files."""
    tags = source.content_tags(files, cache, workers)
    return digest_of([[f.name, f.size, tag] for f, tag in zip(files, tags, strict=True)])


def check_unchanged(source: Source, file: SourceFile) -> None:
    """Raises TemporaryError when the file is not the one that was listed."""
    if source.tag(file) != file.tag:
        raise TemporaryError(f"{file.name}: changed while it was read; run the same command again")


class _ObjectReader(io.RawIOBase):
    """An object of a store as a file."""

    def __init__(self, store: Store, file: SourceFile):
        self._store, self._file, self._at = store, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        length = min(len(buffer), self._file.size - self._at)
        if length <= 0:
            return 0
        buffer[:length] = self._store.read(self._file.path, self._at, length)
        self._at += length
        return length


def _digests(files: Sequence[SourceFile]) -> list[str]:
    return [sha256_file(Path(file.path)) for file in files]


def _local_file(path: str, relative: str, status: os.stat_result | None) -> SourceFile:
    name = os.fsencode(relative).decode("utf-8", "backslashreplace")
    return SourceFile(name=name, path=path, size=status.st_size if status else 0, tag=_tag(status))


def _status(path: str) -> os.stat_result | None:
    """Of the file at `path` or where its link leads; None when nothing is there."""
    try:
        return os.stat(path)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise


def _tag(status: os.stat_result | None) -> str:
    if status is None or not S_ISREG(status.st_mode):
        return ""
    return f"{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}:{status.st_size}"


def _changed_ns(tag: str) -> int:
    return max(int(part) for part in tag.split(":")[:2])


def _read_table(store: Store, key: str) -> dict[str, dict[str, str]]:
    try:
        return TypeAdapter(dict[str, dict[str, str]]).validate_json(store.get(key))
    except (NotFoundError, ValidationError):
        return {}
