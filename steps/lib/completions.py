"""What users of a served model speak: the OpenAI completions API, by the standard library alone."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, TypeVar

from steps.lib.errors import RejectedError, TemporaryError

T = TypeVar("T")
Send = Callable[[str, dict[str, Any] | None, float], tuple[int, bytes]]
"""Asks a server: path, JSON body of a POST or None for a GET, timeout in seconds -> status and body.

It raises TemporaryError when there is no answer.
"""

_TIMEOUT_S = 120.0
_HEALTH_TIMEOUT_S = 5.0
"""Long enough for a busy machine: a server that is taken for dead is replaced."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One answer."""

    text: str
    finish_reason: str
    """stop: the model ended by itself; length: it ran into max_tokens."""
    num_tokens: int


class Client:
    """A client of one endpoint.

    Args:
        base: how messages call it: http://host:port, without /v1.
        send: how its server is asked; None: by HTTP at `base`.
    """

    def __init__(self, base: str, send: Send | None = None):
        self.base = base
        self._send = send or _by_http(base)

    def healthy(self) -> bool:
        """Whether GET /health says 200."""
        try:
            return self._send("/health", None, _HEALTH_TIMEOUT_S)[0] == 200
        except TemporaryError:
            return False

    def models(self) -> list[str]:
        """The names that the endpoint serves."""
        return _taken("/v1/models", self._call("/v1/models"), lambda answer: [str(m["id"]) for m in answer["data"]])

    def complete(self, model: str, prompt: str, *, max_tokens: int, only_token: int | None = None) -> Completion:
        """Greedy completion of `prompt`.

        Args:
            only_token: the only id that may be sampled.

        Raises:
            RejectedError: the endpoint refused the request.
            TemporaryError: it did not answer.
        """
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        if only_token is not None:
            body["allowed_token_ids"] = [only_token]  # vLLM's own field
        return _first(self._call("/v1/completions", body), lambda choice: choice["text"])

    def chat(self, model: str, message: str, *, max_tokens: int) -> Completion:
        """Greedy answer to one user message. Raises as `complete`."""
        messages = [{"role": "user", "content": message}]
        body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}
        return _first(self._call("/v1/chat/completions", body), lambda choice: choice["message"]["content"] or "")

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        status, data = self._send(path, body, _TIMEOUT_S)
        if status != 200:
            raise RejectedError(f"{self.base}{path}: answered {status}: {data[:500].decode(errors='replace')}")
        try:
            return json.loads(data)
        except ValueError as e:
            raise RejectedError(f"{self.base}{path}: the answer is not JSON") from e


def _by_http(base: str) -> Send:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never by way of a proxy

    def send(path: str, body: dict[str, Any] | None, timeout_s: float) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(base + path, data=data, headers={"content-type": "application/json"})
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as e:
            with e:
                return e.code, e.read(500)
        except (OSError, HTTPException) as e:
            raise TemporaryError(f"{base}{path}: no answer: {e}") from e

    return send


def _first(answer: Any, text: Callable[[Any], str]) -> Completion:
    def take(answer: Any) -> Completion:
        choice = answer["choices"][0]
        return Completion(
            text=text(choice), finish_reason=choice["finish_reason"], num_tokens=answer["usage"]["completion_tokens"]
        )

    return _taken("completions", answer, take)


def _taken(what: str, answer: Any, take: Callable[[Any], T]) -> T:
    try:
        return take(answer)
    except (TypeError, KeyError, IndexError, AttributeError) as e:
        raise RejectedError(f"{what}: the answer is not what the OpenAI API gives: {json.dumps(answer)[:200]}") from e
