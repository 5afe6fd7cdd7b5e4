"""The store in a bucket: `s3://bucket/prefix`. Control objects by boto3, bulk bytes by obstore.

Endpoint, region, CA bundle and credentials come from the usual AWS_* environment and files. Paths,
not host names, carry the bucket. A call that the server throttles, fails or does not answer is tried
again for $TRIPOD_STORE_RETRY_S seconds (default 60) and then raises TemporaryError.

Before its first conditional write a store asks the server to refuse a few (`_prove_conditions`): one that
ignores conditions would let every writer win.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from steps.lib.errors import TemporaryError, UserError
from steps.lib.store import failures
from steps.lib.store.base import Bytes, ConflictError, Head, NotFoundError, Store, check_bucket, check_key, is_listed
from steps.lib.store.bulk import Bulk
from steps.lib.store.connection import Connection, Link

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectsV2OutputTypeDef, ObjectTypeDef

T = TypeVar("T")
_log = logging.getLogger(__name__)
_RETRY_S = 60.0
_DELETE_AT_ONCE = 1000
_RENEWALS = 3
_NO_SUCH_TAG = '"00000000000000000000000000000000"'


class S3Store(Store):
    """Objects in a bucket below a prefix. Contacts nothing until the first call.

    Args:
        uri: `s3://bucket` or `s3://bucket/prefix`, the prefix within the key grammar.
        retry_s: seconds of trying again; default $TRIPOD_STORE_RETRY_S.

    Raises:
        UserError: the bucket's name or the prefix is not allowed.
    """

    def __init__(self, uri: str, *, retry_s: float | None = None):
        self.uri = uri.removesuffix("/")
        bucket, prefix = check_bucket(uri)
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._retry_s = _retry_s() if retry_s is None else retry_s
        self._connection = Connection(bucket=bucket, prefix=prefix, retry_s=self._retry_s)
        self._lock = threading.Lock()
        self._trusted = False

    def get(self, key: str) -> bytes:
        """See Store.get."""
        return self.get_tagged(key)[0]

    def get_tagged(self, key: str) -> tuple[bytes, str]:
        """See Store.get_tagged."""

        def get(client: "S3Client") -> tuple[bytes, str]:
            answer = client.get_object(Bucket=self._bucket, Key=self._full(key))
            return answer["Body"].read(), answer["ETag"]

        return self._control("get", key, get)

    def head(self, key: str) -> Head | None:
        """See Store.head."""

        def head(client: "S3Client") -> Head:
            answer = client.head_object(Bucket=self._bucket, Key=self._full(key))
            modified = answer["LastModified"].timestamp()
            return Head(key=key, size=answer["ContentLength"], tag=answer["ETag"], modified=modified)

        try:
            return self._control("head", key, head)
        except NotFoundError:
            return None

    def put(self, key: str, data: Bytes) -> str:
        """See Store.put."""
        return self._control("put", key, lambda client: self._put(client, self._full(key), data))

    def create(self, key: str, data: Bytes) -> str:
        """See Store.create."""
        return self._conditional("create", key, data, IfNoneMatch="*")

    def swap(self, key: str, data: Bytes, tag: str) -> str:
        """See Store.swap."""
        try:
            return self._conditional("swap", key, data, IfMatch=tag)
        except NotFoundError as e:
            raise ConflictError(f"swap {key}: gone meanwhile from {self.uri}") from e

    def delete(self, keys: Iterable[str]) -> None:
        """See Store.delete."""
        names = [self._full(key) for key in keys]
        for start in range(0, len(names), _DELETE_AT_ONCE):
            batch = names[start : start + _DELETE_AT_ONCE]
            self._control("delete", batch[0].removeprefix(self._prefix), partial(self._delete, names=batch))

    def list(self, prefix: str) -> Iterator[Head]:
        """See Store.list. Collects first: some servers (OneFS) list in an order of their own."""
        start = self._full(prefix) + "/" if prefix else self._prefix
        found: list[Head] = []
        more: dict[str, Any] = {}
        while True:
            page = self._control("list", prefix, partial(self._page, start=start, more=more))
            found += filter(None, map(self._listed, page.get("Contents", [])))
            if not page.get("IsTruncated"):
                return iter(sorted(found, key=lambda head: head.key))
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def upload(self, key: str, source: Path | Bytes) -> int:
        """See Store.upload."""
        return self._patiently(lambda link: self._bulk(link).upload(check_key(key), source))

    def read(self, key: str, start: int = 0, length: int | None = None) -> memoryview:
        """See Store.read."""
        return self._patiently(lambda link: self._bulk(link).read(check_key(key), start, length))

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """See Store.read_ranges."""
        return self._patiently(lambda link: self._bulk(link).read_ranges(check_key(key), ranges))

    def download(self, key: str, target: Path) -> int:
        """See Store.download."""
        return self._patiently(lambda link: self._bulk(link).download(check_key(key), target))

    def sweep(self, older_than_s: float) -> Sequence[str]:
        """See Store.sweep: aborts multipart uploads that nobody finished."""
        limit = datetime.now(UTC) - timedelta(seconds=older_than_s)

        def sweep(client: "S3Client") -> list[str]:
            swept = []
            pages = client.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix):
                for upload in page.get("Uploads", []):
                    if upload["Initiated"] < limit:
                        client.abort_multipart_upload(
                            Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                        )
                        swept.append(upload["Key"].removeprefix(self._prefix))
            return swept

        return self._control("sweep", "", sweep)

    # ---- control objects ---------------------------------------------------------------------

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _put(self, client: "S3Client", name: str, data: Bytes, **condition: Any) -> str:
        return client.put_object(Bucket=self._bucket, Key=name, Body=bytes(data), **condition)["ETag"]

    def _conditional(self, operation: str, key: str, data: Bytes, **condition: Any) -> str:
        self._prove_conditions(operation, key)
        name, mark = self._full(key), os.urandom(8).hex()
        tries = count()

        def write(client: "S3Client") -> str:
            first = next(tries) == 0
            try:
                return self._put(client, name, data, Metadata={"write": mark}, **condition)
            except ClientError as e:
                if first or not _is_refusal(e):
                    raise
                # A try before this one may have got through although its answer did not.
                own = self._tag_of_write(client, name, mark)
                if own is None:
                    raise
                return own

        return self._control(operation, key, write)

    def _tag_of_write(self, client: "S3Client", name: str, mark: str) -> str | None:
        try:
            there = client.head_object(Bucket=self._bucket, Key=name)
        except ClientError as e:
            if _is_refusal(e):
                return None
            raise
        return there["ETag"] if there["Metadata"].get("write") == mark else None

    def _prove_conditions(self, operation: str, key: str) -> None:
        """Once: see that the server refuses writes whose condition does not hold.

        Raises:
            UserError: it does not.
        """
        with self._lock:
            if self._trusted:
                return
            there, absent = f"{self._prefix}.conditional-writes", f"{self._prefix}.never-there"
            self._control(operation, key, partial(self._refuses, name=there, IfNoneMatch="*"))
            for header, must_refuse in (
                ("If-None-Match", partial(self._refuses, name=there, IfNoneMatch="*")),
                ("If-Match", partial(self._refuses, name=there, IfMatch=_NO_SUCH_TAG)),
                ("If-Match", partial(self._refuses, name=absent, IfMatch=_NO_SUCH_TAG)),
            ):
                if not self._control(operation, key, must_refuse):
                    self._control("delete", key, partial(self._delete, names=[there, absent]))
                    raise UserError(
                        f"{operation} {key}: the server of {self._where()} ignores {header} on PUT, so two writers "
                        "could both win; use a server with conditional writes"
                    )
            self._trusted = True

    def _refuses(self, client: "S3Client", *, name: str, **condition: Any) -> bool:
        try:
            self._put(client, name, b"", **condition)
        except ClientError as e:
            if _is_refusal(e):
                return True
            raise
        return False

    def _page(self, client: "S3Client", *, start: str, more: dict[str, Any]) -> "ListObjectsV2OutputTypeDef":
        return client.list_objects_v2(Bucket=self._bucket, Prefix=start, **more)

    def _delete(self, client: "S3Client", *, names: Sequence[str]) -> None:
        answer = client.delete_objects(
            Bucket=self._bucket, Delete={"Objects": [{"Key": name} for name in names], "Quiet": True}
        )
        for error in answer.get("Errors", []):
            if error.get("Code") != "NoSuchKey":
                status = 403 if error.get("Code") == "AccessDenied" else 503
                raise ClientError(
                    {"Error": {"Code": error.get("Code", "")}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
                    "DeleteObjects",
                )

    def _listed(self, item: "ObjectTypeDef") -> Head | None:
        key = item["Key"].removeprefix(self._prefix)
        if key.endswith("/") or not all(is_listed(name, f"{self.uri}/{key}") for name in key.split("/")):
            return None  # a console's folder mark, or hidden
        return Head(key=key, size=item["Size"], tag=item["ETag"], modified=item["LastModified"].timestamp())

    # ---- patience ----------------------------------------------------------------------------

    def _control(self, operation: str, key: str, call: Callable[["S3Client"], T]) -> T:
        def attempt(link: Link) -> T:
            try:
                return call(link.client)
            except (ClientError, BotoCoreError) as e:
                raise failures.from_boto(operation, key, self._where(), e) from e

        return self._patiently(attempt)

    def _bulk(self, link: Link) -> Bulk:
        def translate(operation: str, key: str, text: str) -> Exception:
            return failures.from_obstore(operation, key, self._where(), text)

        return Bulk(link.backend, translate)

    def _where(self) -> str:
        return f"s3://{self._bucket} at {self._connection.link().endpoint}"

    def _patiently(self, call: Callable[[Link], T]) -> T:
        """`call` until it works, within the budget and with credentials that may be renewed meanwhile."""
        link = self._connection.link()
        started, renewals = time.monotonic(), 0
        for attempt in count():
            try:
                return call(link)
            except failures.CredentialsError:
                renewals += 1
                if renewals > _RENEWALS or not self._connection.renew(link):
                    raise
                link = self._connection.link()
            except TemporaryError as e:
                spent = time.monotonic() - started
                if spent >= self._retry_s:
                    raise TemporaryError(
                        f"{e}; gave up after {spent:.0f} s, run the same command again when the store answers"
                    ) from e
                pause = min(0.1 * 2**attempt, 10.0) * random.uniform(0.5, 1.0)
                if pause > 1:
                    _log.warning("%s; trying again for %.0f s more", e, self._retry_s - spent)
                time.sleep(min(pause, self._retry_s - spent))
        raise AssertionError("unreachable")


def _is_refusal(error: ClientError) -> bool:
    """Whether the server said that a write's condition does not hold (304: old MinIO)."""
    return error.response["ResponseMetadata"]["HTTPStatusCode"] in (304, 404, 409, 412) and error.response["Error"][
        "Code"
    ] not in ("NoSuchBucket", "XAdminUserNotFound")


def _retry_s() -> float:
    text = os.environ.get("TRIPOD_STORE_RETRY_S", "")
    try:
        seconds = float(text or _RETRY_S)
    except ValueError as e:
        raise UserError(f"TRIPOD_STORE_RETRY_S: got {text!r}, allowed is a number of seconds") from e
    if not 0 <= seconds < 86_400:
        raise UserError(f"TRIPOD_STORE_RETRY_S: got {text!r}, allowed are 0 to 86399 seconds")
    return seconds
