"""How S3 is reached: the standard AWS_* environment and files, read once for boto3 and obstore.

Credentials that botocore can refresh (roles, web identity, processes) refresh by themselves. Others
come from a file that somebody else rotates: `renew` reads it again.
"""

import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError

from steps.lib.errors import UserError
from steps.lib.store.failures import no_credentials

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from obstore.store import S3Credential, S3Store as Backend

Secrets = tuple[str | None, str | None, str | None]
"""Access key id, secret key, session token."""
_CONNECT_S = 5
_DEFAULT_REGION = "us-east-1"
_OBSTORE_REFRESH_S = 300
"""obstore asks for credentials again when they expire in less than this."""


class Link:
    """One set of credentials, and the two clients that use it."""

    def __init__(self, bucket: str, prefix: str, retry_s: float):
        self._bucket, self._prefix, self._retry_s = bucket, prefix, retry_s
        self._read_s = min(30.0, max(1.0, retry_s))
        self._session = botocore.session.Session()
        if region := os.environ.get("AWS_REGION"):  # botocore looks at AWS_DEFAULT_REGION alone
            self._session.set_config_variable("region", region)
        self._bundle = self._session.get_config_variable("ca_bundle")
        if self._bundle and not Path(self._bundle).is_file():
            raise UserError(f"AWS_CA_BUNDLE: got {self._bundle!r}, which is no file")
        credentials = self._session.get_credentials()
        if credentials is None:
            raise no_credentials(f"s3://{bucket}")
        self._credentials: Credentials = credentials
        self.client: S3Client = boto3.Session(botocore_session=self._session).client("s3", config=self._config())
        self.client.meta.events.register("before-call.s3.DeleteObjects", _sign_with_md5)

    @property
    def secrets(self) -> Secrets:
        """What the requests are signed with now."""
        return _frozen(self._credentials)

    @property
    def endpoint(self) -> str:
        """Scheme, host and port: nothing that could be secret."""
        parts = urlsplit(self.client.meta.endpoint_url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    @cached_property
    def backend(self) -> "Backend":
        """obstore's client, rooted at the prefix."""
        from obstore.store import S3Store as Backend

        endpoint = self.client.meta.endpoint_url.rstrip("/")
        options: dict[str, Any] = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "read_timeout": timedelta(seconds=self._read_s),
            "timeout": timedelta(days=1),  # a whole object may take long; a stalled one ends by read_timeout
        }
        if self._bundle:
            options["root_certificate"] = Path(self._bundle).read_bytes()
        return Backend(
            self._bucket,
            prefix=self._prefix or None,
            endpoint=endpoint,
            region=self.client.meta.region_name or _DEFAULT_REGION,
            virtual_hosted_style_request=False,
            client_options=options,  # type: ignore[arg-type]
            credential_provider=self._for_obstore,
            retry_config={
                "max_retries": 10_000,
                "retry_timeout": timedelta(seconds=self._retry_s),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=100),
                    "max_backoff": timedelta(seconds=10),
                    "base": 2,
                },
            },
        )

    def _config(self) -> Config:
        return Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},  # s3.py has the one budget
            connect_timeout=_CONNECT_S,
            read_timeout=self._read_s,
            max_pool_connections=32,
        )

    def _for_obstore(self) -> "S3Credential":
        key_id, secret, token = self.secrets
        assert key_id
        assert secret
        again = datetime.now(UTC) + timedelta(seconds=_OBSTORE_REFRESH_S + 30)
        return {"access_key_id": key_id, "secret_access_key": secret, "token": token, "expires_at": again}


@dataclass(kw_only=True)
class Connection:
    """The link in use, shared by threads.

    Args:
        retry_s: the budget that obstore gets for retries of one request.
    """

    bucket: str
    prefix: str
    retry_s: float

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._link: Link | None = None

    def link(self) -> Link:
        """The link in use; the first call opens it.

        Raises:
            UserError: no credentials, or the AWS_* settings are wrong.
        """
        with self._lock:
            if self._link is None:
                self._link = self._open()
            return self._link

    def renew(self, failed: Link) -> bool:
        """After a refusal of `failed`'s credentials: whether there are others now, which the next link has."""
        with self._lock:
            if self._link is failed:
                fresh = botocore.session.Session().get_credentials()
                if fresh is None or _frozen(fresh) == failed.secrets:
                    return False
                self._link = self._open()
            return True

    def _open(self) -> Link:
        try:
            return Link(self.bucket, self.prefix, self.retry_s)
        except (BotoCoreError, ValueError) as e:  # a profile, a file or an endpoint that is not right
            if isinstance(e, UserError):
                raise
            raise UserError(f"s3://{self.bucket}: {e}; mend the AWS_* settings") from e


def _frozen(credentials: Credentials) -> Secrets:
    frozen = credentials.get_frozen_credentials()
    return frozen.access_key, frozen.secret_key, frozen.token


def _sign_with_md5(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    """Send DeleteObjects' MD5, which some servers insist on and botocore dropped in 1.36.

    With AWS_REQUEST_CHECKSUM_CALCULATION=when_required it replaces the newer checksum.
    """
    import base64
    import hashlib

    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()
    if context["client_config"].request_checksum_calculation == "when_required":
        context.pop("checksum", None)
