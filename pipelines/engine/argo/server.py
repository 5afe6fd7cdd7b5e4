"""Workflows behind an Argo server, with a bearer token: for people who reach no Kubernetes API.

The only home of `argo_workflows`. Its models are those of Argo 3.7 and refuse what Argo 4.0 answers (a
workflow that has not started, strings in withItems), so it gives the requests, and replies are read as JSON here.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipelines.engine.argo.workflows import MAIN
from steps.lib.errors import TemporaryError, UserError
from steps.lib.kube import SPEC, ExistsError, Object, RefusedError, nine_digits

if TYPE_CHECKING:
    from urllib3 import HTTPResponse

_TIMEOUT_S = (5.0, 60.0)
"""To connect, and between two pieces of an answer."""
_AGAIN = frozenset({0, 429, 502, 503, 504})
"""Statuses after which a request is sent again; 0: there was no answer."""


class ServerWorkflows:
    """Those of one namespace, by its Argo server.

    Args:
        server: its URL.
        token: for the header Authorization; with or without the word Bearer.
        ca_bundle: file with the CA certificates it is checked against; "": the system's.
        retry_s: how long a request is repeated while the server is away.

    Raises:
        UserError: the token is missing.
    """

    def __init__(self, server: str, *, namespace: str, token: str, ca_bundle: str = "", retry_s: float = 30):
        from argo_workflows import ApiClient, Configuration
        from argo_workflows.api.workflow_service_api import WorkflowServiceApi

        if not token:
            raise UserError(f"argo.server {server}: $ARGO_TOKEN is not set; `argo auth token` prints one")
        self.place = f"namespace {namespace} of {server}"
        self._server, self._namespace, self._retry_s = server, namespace, retry_s
        settings = Configuration(host=server.rstrip("/"), ssl_ca_cert=ca_bundle or None)
        settings.api_key["BearerToken"] = token if token.startswith("Bearer ") else f"Bearer {token}"
        settings.retries = False
        self._client = ApiClient(settings)
        self._api = WorkflowServiceApi(self._client)

    def get(self, name: str) -> Object | None:
        """See Workflows."""
        return self._json(self._api.get_workflow, self._namespace, name, absent_is_none=True)

    def list(self) -> list[Object]:
        """See Workflows."""
        found = self._json(self._api.list_workflows, self._namespace, fields="items.metadata.name,items.status.phase")
        assert found is not None
        return found.get("items") or []

    def create(self, body: Object) -> Object:
        """See Workflows."""
        name, asked = body["metadata"]["name"], {"namespace": self._namespace, "workflow": body}
        try:
            made = self._json(self._api.create_workflow, self._namespace, asked, _content_type="application/json")
        except ExistsError:
            there = self.get(name)
            if there is None or there["metadata"].get("annotations", {}).get(SPEC) != _spec(body):
                raise
            return there
        assert made is not None
        return made

    def remove(self, workflow: Object) -> None:
        """See Workflows."""
        there = self.get(name := workflow["metadata"]["name"])
        if there and there["metadata"]["uid"] == workflow["metadata"]["uid"]:
            self._json(self._api.delete_workflow, self._namespace, name, absent_is_none=True)

    def terminate(self, name: str) -> None:
        """See Workflows."""
        asked = {"namespace": self._namespace, "name": name}
        self._json(self._api.terminate_workflow, self._namespace, name, asked, _content_type="application/json")

    def log(self, workflow: str, pod: str, *, follow: bool, since: str) -> Iterator[tuple[str, bytes]]:
        """See Workflows. It ends with what is there: a server goes on until the whole workflow has ended."""
        options: dict[str, Any] = {"pod_name": pod, "log_options_container": MAIN, "log_options_timestamps": True}
        reply = self._send(self._api.workflow_logs, self._namespace, workflow, **options)
        if reply is None:
            return
        try:
            for content in _contents(reply):
                stamp, _, text = content.partition(" ")
                if (time_of := nine_digits(stamp)) > since:
                    yield time_of, text.encode()
        finally:
            reply.release_conn()

    def has_pod(self, workflow: str, pod: str) -> bool:
        """See Workflows."""
        return True

    def why_it_waits(self, pod: str) -> str:
        """See Workflows: a server says of pods what stands in the workflow's status, and no more."""
        return ""

    def close(self) -> None:
        """See Workflows."""
        self._client.close()

    def _json(self, call: Callable[..., Any], *args: Any, **more: Any) -> Object | None:
        reply = self._send(call, *args, **more)
        if reply is None:
            return None
        answer: Object = json.loads(reply.data)
        return answer

    def _send(
        self, call: Callable[..., Any], *args: Any, absent_is_none: bool = True, **more: Any
    ) -> "HTTPResponse | None":
        """One answer; None for 404. While the server is away, asks again."""
        from argo_workflows.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        deadline, wait_s = time.monotonic() + self._retry_s, 0.25
        while True:
            try:
                reply: HTTPResponse = call(
                    *args, _check_input_type=False, _preload_content=False, _request_timeout=_TIMEOUT_S, **more
                )
                return reply
            except ApiException as e:
                if e.status == 404 and absent_is_none:
                    return None
                problem = f"status {e.status}" if e.status else " ".join(str(e.reason).split())
                if e.status not in _AGAIN:
                    raise self._failure(e.status, e.body) from e
            except HTTPError as e:
                problem = str(e) or type(e).__name__
            if time.monotonic() + wait_s > deadline:
                raise TemporaryError(f"Argo server {self._server}: {problem}; is it up, and is the address right?")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, 5.0)

    def _failure(self, status: int, body: bytes | str | None) -> Exception:
        try:
            message = str(json.loads(body or b"{}").get("message", "")) or f"status {status}"
        except ValueError:
            message = f"status {status}"
        text = f"Argo server {self._server}: {' '.join(message.split())[:500]}"
        if status == 409:
            return ExistsError(text)
        return RefusedError(text) if status in (400, 401, 403, 404) else TemporaryError(text)


def _spec(body: Mapping[str, Any]) -> str | None:
    spec: str | None = body["metadata"].get("annotations", {}).get(SPEC)
    return spec


def _contents(reply: "HTTPResponse") -> Iterator[str]:
    """What the entries of a log stream say: a JSON object on each line."""
    rest = b""
    for piece in reply.stream(1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line).get("result", {}).get("content", "")
