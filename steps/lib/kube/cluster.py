"""One API server: calls that are repeated while it is away, and failures as this product's kinds."""

import json
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from steps.lib.errors import TemporaryError, UserError
from steps.lib.kube.kinds import ACCESS_REVIEW, POD, Kind

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse, Timeout

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""
SPEC = "tripod/spec"
"""Annotation with a digest of what an object was made from: two with the same one are the same."""

_CONNECT_S, _READ_S = 5.0, 60.0
_AGAIN = frozenset({429, 500, 502, 503, 504})
_FIELD_MANAGER = "tripod"
_PAGE = "500"


class ExistsError(UserError):
    """An object of that name is there, or the object was changed by somebody else meanwhile (409)."""


class RefusedError(UserError):
    """The API server says no: not allowed, or not valid (400, 401, 403, 422)."""


class Cluster:
    """One API server.

    Every method raises
        RefusedError: the server refuses; the message is its own.
        TemporaryError: the server stayed away for `retry_s`, or is overloaded.
    """

    def __init__(self, settings: "Configuration", *, name: str, retry_s: float):
        from kubernetes.client.rest import RESTClientObject

        self.name = name
        """How messages call it."""
        self._settings = settings
        self._retry_s = retry_s
        self._pool = RESTClientObject(settings).pool_manager

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._pool.clear()

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        return self._call("GET", kind.path(namespace, name), absent_is_none=True)

    def list(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None, field: str = ""
    ) -> list[Object]:
        """All objects of a kind in a namespace ("": in all) that have these labels.

        Args:
            field: a field selector, `involvedObject.name=x`.
        """
        query = {"limit": "500"}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        if field:
            query["fieldSelector"] = field
        items: list[Object] = []
        while True:
            page = self._call("GET", kind.path(namespace), query)
            assert page is not None
            items += page.get("items") or []
            if not (more := page["metadata"].get("continue")):
                return items
            query["continue"] = more

    def create(self, kind: Kind, body: Object) -> Object:
        """Create an object; what the server made of it.

        A first try whose reply was lost is recognised: the object that is there then has the same
        `tripod/spec` annotation as `body`, and is returned.

        Raises:
            ExistsError: another object has the name.
        """
        meta = body["metadata"]
        namespace = meta.get("namespace", "")
        try:
            made = self._call("POST", kind.path(namespace), {"fieldManager": _FIELD_MANAGER}, body)
        except ExistsError:
            there = self.get(kind, namespace, meta["name"])
            if there is None or not _same_spec(there, body):
                raise
            return there
        assert made is not None
        return made

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object | None:
        """Merge `patch` (RFC 7386) into an object; None when there is none."""
        return self._call(
            "PATCH",
            kind.path(namespace, name),
            {"fieldManager": _FIELD_MANAGER},
            patch,
            media="application/merge-patch+json",
            absent_is_none=True,
        )

    def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = False) -> Object:
        """Server-side apply of the fields in `body` as `manager`.

        Raises:
            ExistsError: another manager owns one of the fields, and not `force`.
        """
        meta = body["metadata"]
        query = {"fieldManager": manager, "force": json.dumps(force)}
        path = kind.path(meta.get("namespace", ""), meta["name"])
        made = self._call("PATCH", path, query, body, media="application/apply-patch+yaml")
        assert made is not None
        return made

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> bool:
        """Delete an object with what it owns, in the background. False when it was not there.

        Args:
            uid: only if it is still this very object.
        """
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        return self._call("DELETE", kind.path(namespace, name), body=options, absent_is_none=True) is not None

    def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Whether RBAC lets us do `verb` to objects of a kind."""
        group = kind.api_version.partition("/")[0] if "/" in kind.api_version else ""
        asked = {"verb": verb, "group": group, "resource": kind.plural, "namespace": namespace}
        body = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.kind,
            "spec": {"resourceAttributes": asked},
        }
        answer = self._call("POST", ACCESS_REVIEW.path(""), body=body)
        assert answer is not None
        return bool(answer["status"].get("allowed"))

    def version(self) -> str:
        """Version of the API server, such as v1.35.4."""
        answer = self._call("GET", "/version")
        assert answer is not None
        return str(answer["gitVersion"])

    def log(
        self, namespace: str, pod: str, *, container: str = "", follow: bool = False, since: str = ""
    ) -> Iterator[tuple[str, bytes]]:
        """Lines that a container wrote, each with its time (RFC 3339, 9 digits), without the newline.

        Nothing when the pod is gone or has not started. With `follow` it goes on until the container
        ends, the connection is cut or nothing comes for a minute: call again with the last line's time.

        Args:
            since: only lines after this time.
        """
        query = {"follow": json.dumps(follow), "timestamps": "true"}
        query |= {"container": container} if container else {}
        query |= {"sinceTime": since} if since else {}
        path = f"{POD.path(namespace, pod)}/log"
        reply = self._send("GET", f"{path}?{urlencode(query)}", None, "", stream=True)
        try:
            if reply.status not in (200, 400, 404):  # 400: its container has not started
                self._raise(reply.status, reply.read(), path)
            if reply.status == 200:
                yield from _lines(reply, since)
        except self._cut():
            return
        finally:
            reply.close()

    # ---- the wire ----------------------------------------------------------------------------

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        *,
        media: str = "application/json",
        absent_is_none: bool = False,
    ) -> Object | None:
        url = path + (f"?{urlencode(query)}" if query else "")
        reply = self._send(method, url, body, media, stream=False)
        if reply.status == 404 and absent_is_none:
            return None
        if reply.status >= 300:
            self._raise(reply.status, reply.data, path)
        answer: Object = json.loads(reply.data)
        return answer

    def _send(self, method: str, url: str, body: Object | None, media: str, *, stream: bool) -> "BaseHTTPResponse":
        """One reply; while the server is away or overloaded, asks again."""
        deadline = time.monotonic() + self._retry_s
        wait_s = 0.25
        while True:
            try:
                reply: BaseHTTPResponse = self._pool.request(
                    method,
                    self._settings.host.rstrip("/") + url,
                    headers=self._headers(media),
                    body=json.dumps(body).encode() if body is not None else None,
                    preload_content=not stream,
                    retries=False,
                    timeout=self._timeout(),
                )
                problem = f"status {reply.status}"
                if reply.status not in _AGAIN or (reply.status == 500 and method == "POST"):
                    return reply
                if stream:
                    reply.close()
            except self._cut() as e:
                problem = str(e) or type(e).__name__
            if time.monotonic() + wait_s > deadline:
                raise TemporaryError(
                    f"{self.name} cluster, {self._settings.host}: {problem}; is it up, and is the address right?"
                )
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)

    def _cut(self) -> type[Exception]:
        from urllib3.exceptions import HTTPError

        return HTTPError

    def _timeout(self) -> "Timeout":
        from urllib3 import Timeout

        return Timeout(connect=_CONNECT_S, read=_READ_S)

    def _headers(self, media: str) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if token := self._settings.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        if media:
            headers["Content-Type"] = media
        return headers

    def _raise(self, status: int, data: bytes, path: str) -> None:
        try:
            message = str(json.loads(data).get("message", "")) or data.decode(errors="replace")
        except ValueError:
            message = data.decode(errors="replace")
        text = f"{self.name} cluster: {' '.join(message.split())[:500]}"
        if status == 409:
            raise ExistsError(text)
        if status in (400, 401, 403, 404, 405, 415, 422):
            raise RefusedError(text)
        raise TemporaryError(f"{text} (status {status}, {path})")


def _same_spec(there: Object, body: Object) -> bool:
    mine = body["metadata"].get("annotations", {}).get(SPEC)
    return bool(mine) and there["metadata"].get("annotations", {}).get(SPEC) == mine


def _lines(reply: "BaseHTTPResponse", since: str) -> Iterator[tuple[str, bytes]]:
    rest = b""
    for piece in reply.stream(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            stamp, _, text = line.partition(b" ")
            time_of = nine_digits(stamp.decode(errors="replace"))
            if time_of > since:
                yield time_of, text


def nine_digits(stamp: str) -> str:
    """`2026-01-02T03:04:05.6Z` with all its nanoseconds, so that texts compare as times do."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}Z"
