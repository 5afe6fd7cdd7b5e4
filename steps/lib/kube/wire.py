"""JSON over HTTP to a server that wants a token: calls repeated while it is away, failures as this product's kinds."""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from steps.lib.errors import TemporaryError, UserError

if TYPE_CHECKING:
    from kubernetes.client import Configuration
    from urllib3 import BaseHTTPResponse, Timeout

Object = dict[str, Any]
"""A Kubernetes object as JSON has it."""

_CONNECT_S, _READ_S = 5.0, 60.0
_AGAIN = frozenset({429, 500, 502, 503, 504})


class ExistsError(UserError):
    """An object of that name is there, or the object was changed by somebody else meanwhile (409)."""


class RefusedError(UserError):
    """The server says no: not allowed, or not valid (400, 401, 403, 422)."""


class Wire:
    """One server.

    Every method raises
        RefusedError: the server refuses; the message is its own.
        TemporaryError: the server stayed away for `retry_s`, or is overloaded.

    Args:
        what: how messages call it.
    """

    def __init__(self, settings: "Configuration", *, what: str, retry_s: float):
        from kubernetes.client.rest import RESTClientObject

        self._what = what
        self._settings = settings
        self._retry_s = retry_s
        self._closed = threading.Event()
        self._pool = RESTClientObject(settings).pool_manager

    def close(self) -> None:
        """Give the connections back; who still waits for the server to come back waits no longer."""
        self._closed.set()
        self._pool.clear()

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        *,
        media: str = "application/json",
        absent_is_none: bool = False,
    ) -> Object | None:
        """The answer; None for 404, if that is to be no failure.

        Args:
            media: type of the body.
        """
        url = path + (f"?{urlencode(query)}" if query else "")
        reply = self._send(method, url, body, media, stream=False)
        if reply.status == 404 and absent_is_none:
            return None
        if reply.status >= 300:
            self._raise(reply.status, reply.data, path)
        try:
            answer: Object = json.loads(reply.data)
        except ValueError as e:
            raise RefusedError(
                f"{self._what}, {self._settings.host}: {path} is answered by something that is no such server "
                "(not JSON); is the address right?"
            ) from e
        return answer

    def ask(self, path: str, body: Object | None, timeout_s: float) -> tuple[int, bytes]:
        """Status and body of the answer, whatever it is, to a GET, or to a POST of `body`.

        Args:
            timeout_s: for the answer to come once the server is asked.
        """
        method, media = ("GET", "") if body is None else ("POST", "application/json")
        reply = self._send(method, path, body, media, stream=False, read_s=timeout_s)
        return reply.status, reply.data

    def lines(self, path: str, query: Mapping[str, str], *, none_for: Sequence[str] = ()) -> Iterator[bytes]:
        """The lines of an answer as they come; none for 404. It ends, after a whole line, when the connection is cut.

        Args:
            none_for: what a refusal (400) says when there is nothing yet.
        """
        reply = self._send("GET", f"{path}?{urlencode(query)}", None, "", stream=True)
        try:
            if reply.status == 200:
                rest = b""
                for piece in reply.stream(1 << 16):
                    *lines, rest = (rest + piece).split(b"\n")
                    yield from lines
                if rest:
                    yield rest
            elif reply.status != 404:
                data = reply.read()
                if reply.status != 400 or not any(words in _message(data) for words in none_for):
                    self._raise(reply.status, data, path)
        except self._cut():
            return
        finally:
            reply.close()

    def _send(
        self, method: str, url: str, body: Object | None, media: str, *, stream: bool, read_s: float = _READ_S
    ) -> "BaseHTTPResponse":
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
                    timeout=self._timeout(read_s),
                )
                if reply.status not in _AGAIN or (reply.status == 500 and method == "POST"):
                    return reply
                problem = ": ".join(filter(None, (f"status {reply.status}", _message(reply.data))))
                if stream:
                    reply.close()
            except self._cut() as e:
                problem = str(e) or type(e).__name__
            if time.monotonic() + wait_s > deadline or self._closed.wait(wait_s):
                raise TemporaryError(
                    f"{self._what}, {self._settings.host}: {problem}; is it up, and is the address right?"
                )
            wait_s = min(2 * wait_s, 5.0)

    def _cut(self) -> type[Exception]:
        from urllib3.exceptions import HTTPError

        return HTTPError

    def _timeout(self, read_s: float) -> "Timeout":
        from urllib3 import Timeout

        return Timeout(connect=_CONNECT_S, read=read_s)

    def _headers(self, media: str) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if token := self._settings.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        if media:
            headers["Content-Type"] = media
        return headers

    def _raise(self, status: int, data: bytes, path: str) -> None:
        text = f"{self._what}: {_message(data)}"
        if status == 409:
            raise ExistsError(text)
        if status in (400, 401, 403, 404, 405, 415, 422):
            raise RefusedError(text)
        raise TemporaryError(f"{text} (status {status}, {path})")


def _message(data: bytes) -> str:
    """What the body of a failure says, in one line."""
    text = data.decode(errors="replace")
    try:
        said = json.loads(data)
    except ValueError:
        said = None
    if isinstance(said, dict):
        text = str(said.get("message") or text)
    return " ".join(text.split())[:500]
