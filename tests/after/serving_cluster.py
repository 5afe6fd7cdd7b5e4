"""Plays the GPU cluster's controllers and kubelets for Deployments: their pods answer as the stub server does."""

import json
import threading
from argparse import Namespace
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any

from steps.lib.kube.kinds import DEPLOYMENT, POD, SERVICE
from tests.after.stub_server import handler
from tests.kube.api import Api, Object

NAMESPACE = "team-a"


class ServingCluster:
    """Brings up what Deployments ask for, as `mode` says, and answers for the Services.

    mode   ok, empty, deaf, refuses: as the stub server; away: 503 to all, as without pods that are ready
    ends   container -> (exit code, lines of its log): what ends instead of getting ready
    stuck  why a pod cannot be placed
    refused  why no pod may be made
    """

    def __init__(self, api: Api):
        self.api = api
        self.mode = "ok"
        self.ends: dict[str, tuple[int, list[bytes]]] = {}
        self.stuck = ""
        self.refused = ""
        self.asked: Callable[[], None] = lambda: None
        """Called at each completion."""
        self.starts = 0
        self._stop = threading.Event()
        api.behind = self._answer
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> "ServingCluster":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def users(self) -> list[Object]:
        """The Services that users ask."""
        return [s for s in self.api.of(SERVICE) if "tripod/since" in s["metadata"]["annotations"]]

    def models(self) -> list[str]:
        """What the Deployments serve."""
        return [d["metadata"]["annotations"]["tripod/model"] for d in self.api.of(DEPLOYMENT)]

    def _work(self) -> None:
        while not self._stop.wait(0.01):
            with self.api.lock:
                there = {d["metadata"]["name"]: d for d in self.api.of(DEPLOYMENT)}
                for name, deployment in there.items():
                    if not deployment["status"]:
                        self._start(name, deployment)
                for pod in self.api.of(POD):
                    if pod["metadata"]["name"].removesuffix("-x") not in there:
                        self.api.remove(POD, NAMESPACE, pod["metadata"]["name"])

    def _start(self, name: str, deployment: Object) -> None:
        self.starts += 1
        deployment["status"] = {"replicas": deployment["spec"]["replicas"]}
        if self.refused:
            failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": self.refused}
            deployment["status"] = {"conditions": [failure]}
            return
        pod: Object = {"phase": "Pending", "conditions": [], "containerStatuses": [], "initContainerStatuses": []}
        if self.stuck:
            pod["conditions"] = [{"reason": "Unschedulable", "message": self.stuck}]
        for container, (code, lines) in self.ends.items():
            kind = "initContainerStatuses" if container == "fetch" else "containerStatuses"
            pod[kind] = [{"name": container, "state": {"terminated": {"exitCode": code}}}]
            self.api.logs[POD.path(NAMESPACE, f"{name}-x")] = lines
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        self.api.put(POD, {"metadata": {"name": f"{name}-x", "namespace": NAMESPACE, "labels": labels}, "status": pod})
        if not self.stuck and not self.ends:
            deployment["status"]["readyReplicas"] = deployment["spec"]["replicas"]

    def _answer(self, service: str, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        there = self.api.objects.get(service)
        if there is None or self.mode == "away":
            return 503, b'{"message": "no endpoints available for service"}'
        selector = there["spec"]["selector"].items()
        [deployment] = [d for d in self.api.of(DEPLOYMENT) if selector <= d["metadata"]["labels"].items()]
        if path == "/v1/completions":
            self.asked()
        words = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        name = words[words.index("--served-model-name") + 1]
        return _stub(Namespace(mode=self.mode, served_model_name=name, old=None), method, path, body)


def _stub(args: Namespace, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """One answer of the stub server, without a socket."""
    found: list[tuple[int, bytes]] = []

    class Once(handler(args)):  # type: ignore[misc]  # a class made by a call
        def __init__(self) -> None:
            self.path, self.rfile, self.headers = path, BytesIO(body), {"content-length": str(len(body))}

        def answer(self, code: int, body: dict[str, Any]) -> None:
            found.append((code, json.dumps(body).encode()))

    once: BaseHTTPRequestHandler = Once()
    getattr(once, f"do_{method}")()
    return found[0]
