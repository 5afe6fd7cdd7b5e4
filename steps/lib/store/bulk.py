"""Bulk bytes by obstore: the half of a store that files (file.py) and S3 (s3.py) share.

obstore runs its transfers on threads of its own: use it with threads or spawned processes, never
after a fork.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from steps.lib.errors import UserError
from steps.lib.store.base import Bytes

PART_BYTES = 8 << 20
"""One part of a multipart upload, one range of a download."""
PARTS_IN_FLIGHT = 8
"""Memory of one transfer is at most about PARTS_IN_FLIGHT * PART_BYTES = 64 MiB."""
_MAX_PARTS = 10_000
"""S3's limit on the parts of one upload."""

Translate = Callable[[str, str, str], Exception]
"""(operation, key, what obstore said) -> the exception to raise."""


class Bulk:
    """Uploads and reads on one obstore backend.

    Args:
        backend: rooted at the store's root.
        translate: turns a failure that obstore reports as text into one of our errors.
    """

    def __init__(self, backend: ObjectStore, translate: Translate):
        self._backend = backend
        self._translate = translate

    def upload(self, key: str, source: Path | Bytes, at: str = "") -> int:
        """See Store.upload.

        Args:
            at: write there, and let errors speak of `key`.
        """
        if isinstance(source, Path):
            size = source.stat().st_size  # names a missing source by its own path
            content: Path | memoryview = source
        else:
            view = memoryview(source)
            content = view.cast("B") if view.contiguous else memoryview(view.tobytes())
            size = content.nbytes
        part = max(PART_BYTES, -(-size // _MAX_PARTS))
        with self._errors("upload", key):
            obstore.put(self._backend, at or key, content, chunk_size=part, max_concurrency=PARTS_IN_FLIGHT)
        return size

    def read(self, key: str, start: int, length: int | None) -> memoryview:
        """See Store.read."""
        if start == 0 and length is None:
            with self._errors("read", key):
                return memoryview(obstore.get(self._backend, key).bytes())
        if start >= 0 and length and length > 0:
            return self._range("read", key, start, length)
        size = self._size("read", key)
        length = size - start if length is None else length
        _check_range(key, start, length, size)
        return self._range("read", key, start, length) if length else memoryview(b"")

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """See Store.read_ranges."""
        if len(ranges) < 2:
            return [self.read(key, start, length) for start, length in ranges]
        size = self._size("read_ranges", key)  # obstore panics where merged ranges pass the end
        for start, length in ranges:
            _check_range(key, start, length, size)
        wanted = [(start, length) for start, length in ranges if length]
        with self._errors("read_ranges", key):
            starts, lengths = [start for start, _ in wanted], [length for _, length in wanted]
            got = iter(obstore.get_ranges(self._backend, key, starts=starts, lengths=lengths) if wanted else [])
        return [memoryview(next(got) if length else b"") for _, length in ranges]

    def download(self, key: str, target: Path) -> int:
        """See Store.download. Parts arrive side by side in a file beside `target`, renamed at the end."""
        size = self._size("download", key)
        part = target.with_name(f".{os.urandom(8).hex()}.part")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.truncate(fd, size)
            with ThreadPoolExecutor(PARTS_IN_FLIGHT) as pool:
                list(pool.map(lambda start: self._copy_part(key, start, size, fd), range(0, size, PART_BYTES)))
            part.replace(target)
        except OSError as e:
            raise OSError(e.errno, e.strerror, str(target)) from e
        finally:
            os.close(fd)
            part.unlink(missing_ok=True)
        return size

    def _copy_part(self, key: str, start: int, size: int, fd: int) -> None:
        data = self._range("download", key, start, min(PART_BYTES, size - start))
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], start + done)

    def _range(self, operation: str, key: str, start: int, length: int) -> memoryview:
        with self._errors(operation, key):
            data = memoryview(obstore.get_range(self._backend, key, start=start, length=length))
        return _whole(key, start, length, data)

    def _size(self, operation: str, key: str) -> int:
        with self._errors(operation, key):
            return int(obstore.head(self._backend, key)["size"])

    @contextmanager
    def _errors(self, operation: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as e:
            raise self._translate(operation, key, str(e)) from e


def _whole(key: str, start: int, length: int, data: memoryview) -> memoryview:
    if len(data) != length:
        _check_range(key, start, length, start + len(data))
    return data


def _check_range(key: str, start: int, length: int, size: int) -> None:
    if start < 0 or length < 0 or start + length > size:
        raise UserError(f"read {key}: {length} bytes from {start} lie outside the object, it has {size}")
