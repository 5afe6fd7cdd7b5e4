"""Plays Argo's controller on the double of an API server: a workflow whose steps do what a test says."""

import time
from pathlib import Path
from typing import Any

from pipelines.engine.argo.workflows import KubernetesWorkflows
from steps.lib.kube import open_cluster
from steps.lib.kube.kinds import POD, WORKFLOW
from tests.engine.workflows import Document
from tests.kube.api import Api, Object

NAMESPACE = "team-a"


def stamp(seconds: float | None = None) -> str:
    """A time as Kubernetes writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() if seconds is None else seconds))


def open_stage(kubeconfig: Path) -> KubernetesWorkflows:
    """The Workflows of the double."""
    return KubernetesWorkflows(open_cluster("compute", kubeconfig=str(kubeconfig), retry_s=1), NAMESPACE)


class Stage:
    """One workflow on the double, in the shapes of Argo 4.0.7."""

    def __init__(self, api: Api, run: str):
        self.api, self.run = api, run

    @property
    def workflow(self) -> Object:
        """What is kept."""
        return self.api.objects[WORKFLOW.path(NAMESPACE, self.run)]

    def put(self, document: Document) -> Object:
        """A workflow that somebody has submitted."""
        body = document | {"metadata": document["metadata"] | {"namespace": NAMESPACE}}
        return self.api.put(WORKFLOW, body)

    def pod(self, task: str, phase: str, *, code: int | None = None, said: str = "", **more: Any) -> None:
        """The pod of a task, or an attempt `a(1)` of one that may be retried."""
        if (node := self._named().get(task)) is None:
            name = f"{self.run}-{len(self._nodes())}"
            node = {"id": name, "name": f"{self.run}.{task}", "type": "Pod", "startedAt": stamp()}
            self._nodes()[name] = node
        node |= {"templateName": "t", "phase": phase, "message": said} | more
        if code is not None:
            node["outputs"] = {"exitCode": str(code)} | (node.get("outputs") or {})
        if phase not in ("Pending", "Running"):
            node["finishedAt"] = stamp()

    def give(self, task: str, **outputs: str) -> None:
        """Output parameters of a task."""
        node = self._named()[task]
        node["outputs"] = {"parameters": [{"name": n, "value": v} for n, v in outputs.items()]} | (
            node.get("outputs") or {}
        )

    def retry(self, task: str, phase: str) -> None:
        """The node over the attempts of a task."""
        named = self._named()
        children = [node["id"] for name, node in named.items() if name.startswith(f"{task}(")]
        there = named.get(task) or {"id": f"{self.run}-{task}", "name": f"{self.run}.{task}", "startedAt": stamp()}
        self._nodes()[there["id"]] = there | {"type": "Retry", "phase": phase, "children": children}

    def write(self, task: str, *lines: str, more: bool = False) -> None:
        """Lines that the pod of a task writes; `more` are to come."""
        path = self.pod_path(task)
        self.api.objects.setdefault(path, {"metadata": {"name": path.rpartition("/")[2], "namespace": NAMESPACE}})
        self.api.logs.setdefault(path, []).extend(line.encode() for line in lines)
        (self.api.writing.add if more else self.api.writing.discard)(path)

    def pod_path(self, task: str) -> str:
        """Where the pod of a task is."""
        number = self._named()[task]["id"].rpartition("-")[2]
        return POD.path(NAMESPACE, f"{self.run}-t-{number}")

    def end(self, phase: str, message: str = "") -> None:
        """The workflow has ended."""
        self.workflow["status"] |= {"phase": phase, "message": message, "finishedAt": stamp()}

    def _nodes(self) -> dict[str, Object]:
        status = self.workflow.setdefault("status", {})
        status.setdefault("phase", "Running")
        found: dict[str, Object] = status.setdefault("nodes", {})
        return found

    def _named(self) -> dict[str, Object]:
        return {node["name"].removeprefix(f"{self.run}."): node for node in self._nodes().values()}
