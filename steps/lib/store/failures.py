"""What a failed S3 call means: one table for boto3's errors and for what obstore says in text.

    NotFoundError      404 of an object
    ConflictError      304, 409, 412: a condition did not hold (old MinIO answers 304)
    TemporaryError     5xx, 429, throttling, time-outs, no connection, bytes that differ from their
                       checksum: the caller tries again
    CredentialsError   expired or wrong: the caller looks for renewed ones, then it is the user's
    UserError          no bucket, no permission, certificate, clock, a feature the server lacks

Messages name operation, key and endpoint. A server's own text is quoted only where nothing else
tells the reason, and then only its <Message>: error bodies may echo access keys and signatures.
"""

import os
import re

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError as NoConnectionError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
    TokenRetrievalError,
)

from steps.lib.errors import TemporaryError, TripodError, UserError
from steps.lib.store.base import ConflictError, NotFoundError

CHECKSUM_SETTING = "AWS_REQUEST_CHECKSUM_CALCULATION"
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_WRONG = {
    "AuthFailure",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "XAdminUserNotFound",  # versitygw
}
_BUSY = {
    "BandwidthLimitExceeded",
    "IncompleteBody",
    "InternalError",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequests",
    "TooManyRequestsException",
}
_ABOVE_OR_BELOW = {"ExistingObjectIsDirectory", "ObjectParentIsFile", "XMinioParentIsObject"}
_CERTIFICATE = re.compile("certificate|UnknownIssuer", re.IGNORECASE)


class CredentialsError(UserError):
    """The server does not take the credentials, or there are none."""


def from_boto(operation: str, key: str, where: str, error: ClientError | BotoCoreError) -> TripodError:
    """The error to raise for one of boto3's.

    Args:
        where: names the bucket and the endpoint.
    """
    if isinstance(error, ClientError):
        details, meta = error.response.get("Error", {}), error.response.get("ResponseMetadata", {})
        code = details.get("Code", "")
        status = meta.get("HTTPStatusCode", int(code) if code.isdecimal() else 0)
        return explain(operation, key, where, status, "" if code.isdecimal() else code, details.get("Message", ""))
    what = f"{operation} {key} in {where}"
    name = type(error).__name__
    if isinstance(error, SSLError):
        return _certificate(what)
    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError | TokenRetrievalError):
        return no_credentials(what)
    if isinstance(error, HTTPClientError | NoConnectionError | IncompleteReadError | FlexibleChecksumError):
        return TemporaryError(f"{what}: {name}")
    return UserError(f"{what}: {_one_line(str(error))}")


def from_obstore(operation: str, key: str, where: str, text: str) -> TripodError:
    """The error to raise for the message `text` of one of obstore's."""
    what = f"{operation} {key} in {where}"
    status = re.search(r"status code: (\d{3})", text)
    if status:
        return explain(operation, key, where, int(status[1]), _tag("Code", text), _tag("Message", text))
    if "External AWS credential provider" in text:
        return no_credentials(what)
    if _CERTIFICATE.search(text):
        return _certificate(what)
    return TemporaryError(f"{what}: {_one_line(text.splitlines()[0].rpartition(' - ')[2])}")


def explain(operation: str, key: str, where: str, status: int, code: str, message: str) -> TripodError:
    """The error to raise for an answer of the server: HTTP status, S3 error code, its message."""
    what = f"{operation} {key} in {where}: {status} {code}".rstrip()
    if code in _EXPIRED:
        return CredentialsError(f"{what}: credentials expired; renew them, then run the same command again")
    if code in _WRONG or (status in (400, 401) and not code):  # the answer to a HEAD has no code
        return CredentialsError(
            f"{what}: credentials refused; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), "
            "then run the same command again"
        )
    if code == "RequestTimeTooSkewed":
        return UserError(f"{what}: this machine's clock is wrong; set it, then run the same command again")
    if code in _BUSY or status in (408, 429) or (status >= 500 and status not in (501, 505)):
        return TemporaryError(what)
    if code == "NoSuchBucket":
        return UserError(f"{what}: no such bucket; create it, or set $TRIPOD_STORE to one that exists")
    if status == 404:
        return NotFoundError(f"{operation} {key}: no such object in {where}")
    if code in _ABOVE_OR_BELOW:
        return UserError(f"{what}: on this server a key cannot also be the folder of another key")
    if status in (304, 409, 412):
        return ConflictError(f"{operation} {key}: exists or changed meanwhile in {where}")
    if status == 416:
        return UserError(f"{operation} {key}: the range lies outside the object")
    if status in (401, 403):
        return CredentialsError(
            f"{what}: access denied; allow it for these credentials, see `python -m pipelines.doctor`"
        )
    return UserError(f"{what}: {_one_line(message)}{_checksum_hint(operation, status)}")


def no_credentials(what: str) -> CredentialsError:
    """There are no credentials to sign with."""
    return CredentialsError(
        f"{what}: no usable credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    )


def _certificate(what: str) -> UserError:
    return UserError(f"{what}: the server's certificate is not trusted; set AWS_CA_BUNDLE to its CA's PEM file")


def _checksum_hint(operation: str, status: int) -> str:
    writes = operation in ("put", "create", "swap", "delete")
    if writes and status in (400, 501) and os.environ.get(CHECKSUM_SETTING) != "when_required":
        return f"; a server that refuses newer checksums needs {CHECKSUM_SETTING}=when_required"
    return ""


def _tag(name: str, text: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", text)
    return found[1] if found else ""


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 200 else text[:197] + "..."
