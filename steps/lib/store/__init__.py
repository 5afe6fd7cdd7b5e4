"""The one seam to object storage: `open_store(uri)` gives a Store (see base.py)."""

from steps.lib.errors import UserError
from steps.lib.store.base import Bytes, ConflictError, Head, NotFoundError, Store, check_bucket, check_key

__all__ = ["Bytes", "ConflictError", "Head", "NotFoundError", "Store", "check_bucket", "check_key", "open_store"]


def open_store(uri: str) -> Store:
    """The store at `uri`: `file:///folder` or `s3://bucket/prefix`. Contacts nothing yet.

    S3's endpoint, region, CA bundle and credentials come from the usual AWS_* environment.

    Raises:
        UserError: another scheme, no bucket, a prefix outside the key grammar, or no folder.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "file" and rest.startswith("/"):
        from steps.lib.store.file import FileStore

        return FileStore(uri)
    if scheme == "s3" and rest:
        from steps.lib.store.s3 import S3Store

        return S3Store(uri)
    raise UserError(
        f"store: got {uri!r}, allowed are file:///absolute/folder and s3://bucket/prefix "
        "(set $TRIPOD_STORE, or store.uri in the site file)"
    )
