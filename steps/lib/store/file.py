"""The store in a local folder (or one on NFS): `file:///abs/folder`, its path taken literally.

    <root>/<key>             one file an object
    <root>/.../.<hex>.tmp    an object on its way; link(2) or rename(2) makes it visible
    <root>/.locks/<2 hex>    flock(2) for what replaces or removes; keys share 256 locks

Hidden names are never listed. Control objects here, bulk bytes by obstore (bulk.py), which is
imported with the first bulk call.
"""

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING
from zlib import crc32

from steps.lib.errors import TemporaryError, TripodError, UserError
from steps.lib.store.base import Bytes, ConflictError, Head, NotFoundError, Store, check_key, is_listed

if TYPE_CHECKING:
    from steps.lib.store.bulk import Bulk

_ON_ITS_WAY = re.compile(r"\.[0-9a-f]{16}\.tmp(#\d+)?")  # obstore adds #n while it writes
_READS = {"get", "head", "delete", "read", "read_ranges", "download"}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTSUP, errno.ENOSYS, errno.ENOENT}
_SHAKY = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN}
_ABOVE_OR_BELOW = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY}


class FileStore(Store):
    """Objects as files. Creates its folder with the first write.

    Args:
        uri: `file://` and an absolute path.

    Raises:
        UserError: where its folder should be is something else.
    """

    def __init__(self, uri: str):
        self._root = uri.removeprefix("file://").rstrip("/")
        self.uri = f"file://{self._root}"
        there = self._root or "/"
        while not os.path.exists(there):
            there = os.path.dirname(there)
        if not os.path.isdir(there):
            raise UserError(f"store {self.uri}: {there} is no folder; set $TRIPOD_STORE to file:///a/folder")

    def get(self, key: str) -> bytes:
        """See Store.get."""
        return self.get_tagged(key)[0]

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        """See Store.get_tagged."""
        with self._errors("get", key), open(self._path(key), "rb") as f:
            return f.read(), _tag(os.fstat(f.fileno()))

    def head(self, key: str) -> Head | None:
        """See Store.head."""
        try:
            with self._errors("head", key):
                return _head(key, os.stat(self._path(key)))
        except NotFoundError:
            return None

    def put(self, key: str, data: Bytes) -> str:
        """See Store.put."""
        with self._errors("put", key), self._written(key, data) as (temp, tag), self._locked(key):
            self._replace(temp, key)
        return tag

    def create(self, key: str, data: Bytes) -> str:
        """See Store.create."""
        path = self._path(key)
        with self._errors("create", key), self._written(key, data) as (temp, tag):
            try:
                os.link(temp, path)
            except FileExistsError as e:
                if os.path.isdir(path):
                    raise
                raise ConflictError(f"create {key}: exists already in {self.uri}") from e
            _sync(os.path.dirname(path))
        return tag

    def swap(self, key: str, data: Bytes, tag: str) -> str:
        """See Store.swap."""
        with self._errors("swap", key), self._written(key, data) as (temp, new_tag), self._locked(key):
            there = self.head(key)
            if there is None or there.tag != tag:
                raise ConflictError(f"swap {key}: {'changed' if there else 'gone'} meanwhile in {self.uri}")
            self._replace(temp, key)
        return new_tag

    def delete(self, keys: Iterable[str]) -> None:
        """See Store.delete. Folders that this leaves empty go too."""
        for key in keys:
            path = self._path(key)
            with suppress(NotFoundError), self._errors("delete", key), self._locked(key):
                os.unlink(path)
            with suppress(OSError):  # not empty, or already gone
                while len(path := os.path.dirname(path)) > len(self._root):
                    os.rmdir(path)

    def list(self, prefix: str) -> Iterator[Head]:
        """See Store.list."""
        if prefix:
            check_key(prefix)
        return self._walk(prefix)

    def upload(self, key: str, source: Path | Bytes) -> int:
        """See Store.upload."""
        path = self._path(key)
        temp = _temp_beside(path)
        with self._errors("upload", key):
            _make_folders(os.path.dirname(path))  # obstore makes them too, but not onto the disk
        try:
            size = self._bulk.upload(key, source, at=temp.removeprefix(f"{self._root}/"))
            with self._errors("upload", key):
                _sync(temp)  # may take long, and the lock is other keys' too
                with self._locked(key):
                    self._replace(temp, key)
        finally:
            with suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(temp)
        return size

    def read(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See Store.read."""
        return self._bulk.read(check_key(key), start, length)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """See Store.read_ranges."""
        return self._bulk.read_ranges(check_key(key), ranges)

    def download(self, key: str, target: Path) -> int:
        """See Store.download."""
        return self._bulk.download(check_key(key), target)

    def sweep(self, older_than_s: float) -> Sequence[str]:
        """See Store.sweep: removes files on their way that nobody renamed."""
        limit = time.time() - older_than_s
        swept = []
        for folder, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for path in (f"{folder}/{name}" for name in names if _ON_ITS_WAY.fullmatch(name)):
                with suppress(FileNotFoundError), self._errors("sweep", path):
                    if os.stat(path).st_mtime < limit:
                        os.unlink(path)
                        swept.append(path.removeprefix(f"{self._root}/"))
        return swept

    @cached_property
    def _bulk(self) -> "Bulk":
        from obstore.store import LocalStore

        from steps.lib.store.bulk import Bulk

        with self._errors("open", self.uri):
            _make_folders(self._root)
        return Bulk(LocalStore(self._root), self._bulk_failure)

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    @contextmanager
    def _written(self, key: str, data: Bytes) -> Iterator[tuple[str, str]]:
        """A hidden file beside the key that holds `data`, on the disk; yields its path and tag."""
        temp = _temp_beside(self._path(key))
        fd = _open_new(temp)
        try:
            with os.fdopen(fd, "wb") as f:
                f.write(bytes(data))  # control objects are small
                f.flush()
                # Some file systems stamp by a clock that ticks every few ms, within which an inode
                # number can come back: two versions would share a tag.
                os.utime(f.fileno(), ns=(time.time_ns(),) * 2)
                os.fsync(f.fileno())
                tag = _tag(os.fstat(f.fileno()))
            yield temp, tag
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temp)

    def _replace(self, temp: str, key: str) -> None:
        path = self._path(key)
        os.replace(temp, path)
        _sync(os.path.dirname(path))

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """One process and thread at a time between here and the end, for this key."""
        lock = f"{self._root}/.locks/{crc32(key.encode()) & 0xFF:02x}"
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(lock), exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _walk(self, folder: str) -> Iterator[Head]:
        where = f"{self._root}/{folder}"
        with self._errors("list", folder):
            try:
                with os.scandir(where) as entries:
                    there = [(e.name + "/" if e.is_dir() else e.name, e) for e in entries if is_listed(e.name, where)]
            except (FileNotFoundError, NotADirectoryError):
                return
        for name, entry in sorted(there, key=lambda pair: pair[0]):
            key = f"{folder}/{name}" if folder else name
            if name.endswith("/"):
                yield from self._walk(key[:-1])
                continue
            with suppress(FileNotFoundError):  # removed since
                yield _head(key, entry.stat())

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise self._failure(operation, key, e) from e

    def _failure(self, operation: str, key: str, error: OSError) -> Exception:
        if error.errno in _ABSENT and operation in _READS:
            return NotFoundError(f"{operation} {key}: no such object in {self.uri}")
        if error.errno in _ABOVE_OR_BELOW:
            return UserError(f"{operation} {key}: in {self.uri} a key cannot also be the folder of another key")
        if error.errno in _REFUSED:
            return UserError(
                f"{operation} {key}: {self._root}: {error.strerror}; "
                "set $TRIPOD_STORE to a folder that you may write, or mend its permissions"
            )
        if error.errno in _SHAKY:
            return TemporaryError(f"{operation} {key}: {self._root}: {error.strerror}")
        return OSError(error.errno, error.strerror, error.filename or f"{self._root}/{key}")

    def _bulk_failure(self, operation: str, key: str, text: str) -> Exception:
        _, found, code = text.partition("(os error ")
        if found:
            number = int(code.partition(")")[0])
            return self._failure(operation, key, OSError(number, os.strerror(number)))
        if "is directory" in text:
            return NotFoundError(f"{operation} {key}: no such object in {self.uri}")
        if "InvalidRange" in text:
            return UserError(f"{operation} {key}: the range lies outside the object")
        return TripodError(f"{operation} {key}: {text.splitlines()[0]}")


def _open_new(path: str) -> int:
    """Create `path` and its folders; a twin's `delete` may take away an empty folder meanwhile."""
    for _ in range(100):
        with suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        _make_folders(os.path.dirname(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _make_folders(folder: str) -> None:
    """Create `folder` and what lacks above it, onto the disk: an object is no safer than the names that lead to it."""
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    with suppress(FileNotFoundError):  # taken away by a twin's `delete`: the caller sees that it lacks
        for name in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(name)
        for name in missing:  # the deepest first: its journal entry takes those above it along
            _sync(os.path.dirname(name))


def _temp_beside(path: str) -> str:
    return f"{os.path.dirname(path)}/.{os.urandom(8).hex()}.tmp"


def _sync(path: str) -> None:
    """Onto the disk: a file's bytes, a folder's names."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _tag(stat: os.stat_result) -> str:
    return f"{stat.st_mtime_ns:x}-{stat.st_size:x}-{stat.st_ino:x}"


def _head(key: str, stat: os.stat_result) -> Head:
    if not S_ISREG(stat.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return Head(key=key, size=stat.st_size, tag=_tag(stat), modified=stat.st_mtime)
