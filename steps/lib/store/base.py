"""What a store is: one key grammar, control objects with conditions, bulk bytes.

    control   get head put create swap delete list     small objects; `create` and `swap` are atomic
    bulk      upload read read_ranges download         any size, by ranges, whole or not at all

Two stores exist, `file://` (file.py) and `s3://` (s3.py); tests/store runs one suite on both.
Keys: segments of letters, digits, `.`, `_`, `-`, `=` joined by `/`. The strict grammar is why no key
ever needs escaping, on any server and in any shell.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from steps.lib.errors import Exit, TripodError, UserError

Bytes = bytes | bytearray | memoryview
_SEGMENT = re.compile(r"[A-Za-z0-9_=][A-Za-z0-9._=-]{0,199}")
MAX_KEY_CHARS = 512
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")


class NotFoundError(TripodError):
    """The key holds no object. Where nobody expects that, somebody took it away: no bug of ours."""

    code = Exit.USER


class ConflictError(TripodError):
    """The condition of a write did not hold: the object exists, or it changed meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a listing or a HEAD tells of one object."""

    key: str
    size: int
    """Bytes."""
    tag: str
    """Changes whenever the content may have changed; compare for equality only."""
    modified: float
    """Seconds since the epoch, by the store's clock."""


def check_key(key: str) -> str:
    """`key` itself when it is well formed.

    Raises:
        UserError: empty, too long, or a segment outside the grammar (`..` is one).
    """
    if len(key) > MAX_KEY_CHARS or not all(_SEGMENT.fullmatch(part) for part in key.split("/")):
        raise UserError(
            f"store key: got {key!r}, allowed are up to {MAX_KEY_CHARS} characters, segments of "
            "up to 200 A-Z a-z 0-9 . _ = - (not starting with . or -) joined by single slashes"
        )
    return key


def check_bucket(uri: str) -> tuple[str, str]:
    """Bucket and prefix of `s3://bucket/prefix`; here, so that a plan can check them without boto3.

    Raises:
        UserError: a bucket's name that is none, or a prefix outside the key grammar.
    """
    bucket, _, prefix = uri.removeprefix("s3://").removesuffix("/").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise UserError(f"store: got bucket {bucket!r} in {uri!r}, allowed are 3 to 63 of A-Z a-z 0-9 . _ -")
    return bucket, check_key(prefix) if prefix else ""


def is_listed(name: str, where: str) -> bool:
    """Whether a listing shows `name`, a segment found at `where`; names that start with a dot are hidden.

    Raises:
        UserError: the name is outside the key grammar. Passing over it could lose data unseen.
    """
    if name.startswith("."):
        return False
    if not _SEGMENT.fullmatch(name):
        raise UserError(f"{where}: got {name!r}, which no key can name; rename it with A-Z a-z 0-9 . _ = -")
    return True


class Store(ABC):
    """Objects under one root. All methods are safe to call from several threads.

    Every method raises TemporaryError when the store stays out of reach after the retry budget,
    and UserError when it refuses access; the message names the operation and the key.
    """

    uri: str
    """`file:///abs/path` or `s3://bucket/prefix`, without a trailing slash."""

    # ---- control objects ---------------------------------------------------------------------

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The whole object. Raises NotFoundError."""

    @abstractmethod
    def get_tagged(self, key: str) -> tuple[bytes, str]:
        """The whole object and the tag to give to `swap`. Raises NotFoundError."""

    @abstractmethod
    def head(self, key: str) -> Head | None:
        """Size, tag and time of the object; None when there is none."""

    @abstractmethod
    def put(self, key: str, data: Bytes) -> str:
        """Write unconditionally; readers see the old or the new object, whole. Returns the tag."""

    @abstractmethod
    def create(self, key: str, data: Bytes) -> str:
        """Write only where nothing is; of racing writers exactly one wins. Returns the tag.

        Raises:
            ConflictError: there is an object already.
        """

    @abstractmethod
    def swap(self, key: str, data: Bytes, tag: str) -> str:
        """Replace only the version that `tag` names. Returns the new tag.

        Raises:
            ConflictError: the object has another tag, or is gone.
        """

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; keys without an object are no error."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Head]:
        """Every object whose key starts with `prefix` + "/" (all, for ""), sorted by key.

        Raises:
            UserError: something there has a name that no key can have.
        """

    # ---- bulk bytes --------------------------------------------------------------------------

    @abstractmethod
    def upload(self, key: str, source: Path | Bytes) -> int:
        """Write a file or a buffer of any size; visible at once and whole. Returns bytes written."""

    @abstractmethod
    def read(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """`length` bytes from `start` (to the end when None).

        Raises:
            NotFoundError: no such object.
            UserError: the range lies outside the object.
        """

    @abstractmethod
    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Several (start, length) ranges of one object, fetched side by side."""

    @abstractmethod
    def download(self, key: str, target: Path) -> int:
        """Write the object to a local file, whole or not at all. Returns bytes written."""

    # ---- upkeep ------------------------------------------------------------------------------

    @abstractmethod
    def sweep(self, older_than_s: float) -> Sequence[str]:
        """Remove what killed writers left behind unseen (half uploads), by age. Returns the names."""
