"""Workflows behind an Argo server, with a bearer token: for people who reach no Kubernetes API."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from pipelines.engine.argo.workflows import MAIN
from steps.lib.errors import UserError
from steps.lib.kube import ExistsError, Object, log_line, open_wire, same_spec


class ServerWorkflows:
    """Those of one namespace, by its Argo server.

    Args:
        server: its URL.
        token: for the header Authorization; with or without the word Bearer.
        ca_bundle: file with the CA certificates that it is checked against; "": the system's.
        retry_s: how long a request is repeated while the server is away.

    Raises:
        UserError: the token or the file is missing.
    """

    def __init__(self, server: str, *, namespace: str, token: str, ca_bundle: str = "", retry_s: float = 30):
        if not token:
            raise UserError(f"argo.server {server}: $ARGO_TOKEN is not set; `argo auth token` prints one")
        if ca_bundle and not Path(ca_bundle).is_file():
            raise UserError(f"argo.ca_bundle: {ca_bundle}: no such file")
        self.place = f"namespace {namespace} of {server}"
        self._namespace = namespace
        self._wire = open_wire("Argo server", server, token=token, ca_file=ca_bundle, retry_s=retry_s)

    def get(self, name: str) -> Object | None:
        """See Workflows."""
        return self._wire.call("GET", self._path(name), absent_is_none=True)

    def list(self) -> list[Object]:
        """See Workflows."""
        found = self._wire.call("GET", self._path(), {"fields": "items.metadata.name,items.status.phase"})
        assert found is not None
        return found.get("items") or []

    def create(self, body: Object) -> Object:
        """See Workflows."""
        try:
            made = self._wire.call("POST", self._path(), body={"namespace": self._namespace, "workflow": body})
        except ExistsError:
            made = self.get(body["metadata"]["name"])
            if made is None or not same_spec(made, body):
                raise
        assert made is not None
        return made

    def remove(self, workflow: Object) -> None:
        """See Workflows."""
        there = self.get(name := workflow["metadata"]["name"])
        if there and there["metadata"]["uid"] == workflow["metadata"]["uid"]:
            self._wire.call("DELETE", self._path(name), absent_is_none=True)

    def terminate(self, name: str) -> None:
        """See Workflows."""
        self._wire.call("PUT", f"{self._path(name)}/terminate", body={"namespace": self._namespace, "name": name})

    def log(self, workflow: str, pod: str, *, follow: bool, since: str) -> Iterator[tuple[str, bytes]]:
        """See Workflows. It ends with what is there: a server goes on until the whole workflow has ended."""
        query = {"podName": pod, "logOptions.container": MAIN, "logOptions.timestamps": "true"}
        for line in self._wire.lines(f"{self._path(workflow)}/log", query):
            said = json.loads(line).get("result", {}).get("content", "") if line.strip() else ""
            if not said:
                continue
            time_of, text = log_line(said.encode(), f"Argo server: log of pod {pod}")
            if time_of > since:
                yield time_of, text

    def has_pod(self, workflow: str, pod: str) -> bool:
        """See Workflows."""
        return True

    def why_it_waits(self, pod: str) -> str:
        """See Workflows: a server says of pods what stands in the workflow's status, and no more."""
        return ""

    def close(self) -> None:
        """See Workflows."""
        self._wire.close()

    def _path(self, name: str = "") -> str:
        return f"/api/v1/workflows/{quote(self._namespace)}" + (f"/{quote(name)}" if name else "")
