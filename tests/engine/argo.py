"""Argo on a real cluster as the conformance suite sees it. Needs TRIPOD_COMPUTE_KUBECONFIG and TRIPOD_IMAGE_DATA."""

import copy
import os
import secrets
import threading
import time
from dataclasses import asdict
from pathlib import Path

from pipelines import pods
from pipelines.clusters import compute_cluster
from pipelines.engine.argo.follow import Follower
from pipelines.engine.argo.submit import cancel, submit
from pipelines.engine.events import Event, LogLine, Outcome
from pipelines.settings.load import load_site
from steps.lib.kube import Cluster
from tests.engine.engines import Result, wait_until
from tests.engine.workflows import Document

DEADLINE_S = 300


class ArgoRun:
    """A run on Argo, followed in a thread."""

    def __init__(self, cluster: Cluster, namespace: str, document: Document, scratch: Path):
        self._cluster, self._namespace = cluster, namespace
        self._name = document["metadata"]["name"]
        self._lines: list[LogLine] = []
        self._started = time.monotonic()
        submit(cluster, document, namespace)
        self._follower = Follower(cluster, namespace, self._name, scratch=scratch, listeners=[self._listen])
        self._outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def wait_for_line(self, node: str, start: str) -> str:
        """See Running."""

        def found() -> str:
            return next((e.line for e in self._lines if e.node == node and e.line.startswith(start)), "")

        return wait_until(found, f"a line {start!r} of {node}", DEADLINE_S)

    def cancel(self) -> None:
        """See Running."""
        cancel(self._cluster, self._namespace, self._name)

    def result(self) -> Result:
        """See Running."""
        self._thread.join(DEADLINE_S)
        outcome = self._outcome
        assert outcome, f"{self._name} has not ended after {DEADLINE_S} s"
        logs: dict[str, list[LogLine]] = {}
        for event in self._lines:
            lines = logs.setdefault(event.node, [])
            if lines and lines[0].attempt != event.attempt:
                lines.clear()
            lines.append(event)
        return Result(
            phase=str(outcome.phase),
            exit_code=outcome.exit_code,
            message=outcome.message,
            nodes={name: asdict(node) for name, node in outcome.nodes.items()},
            logs={name: "".join(f"{e.line}\n" for e in lines) for name, lines in logs.items()},
            wall_s=time.monotonic() - self._started,
        )

    def _follow(self) -> None:
        self._outcome = self._follower.run()

    def _listen(self, event: Event) -> None:
        if isinstance(event, LogLine):
            self._lines.append(event)


class ArgoEngine:
    """Argo as the suite sees it. Workflows stay on the cluster: a test that failed can be looked at."""

    def __init__(self, scratch: Path):
        self._site = load_site("lab").value
        self._cluster = compute_cluster(self._site)
        self._scratch = scratch

    def start(self, document: Document) -> ArgoRun:
        """See Engine."""
        ours = self._dressed(document)
        return ArgoRun(self._cluster, self._site.argo.namespace, ours, self._scratch / ours["metadata"]["name"])

    def run(self, document: Document) -> Result:
        """See Engine."""
        return self.start(document).result()

    def close(self) -> None:
        """Nothing runs here."""

    def _dressed(self, document: Document) -> Document:
        """What our builders put around a workflow for a cluster."""
        ours = copy.deepcopy(document)
        ours["metadata"]["name"] = f"conformance-{secrets.token_hex(4)}"
        spec = ours["spec"]
        spec["serviceAccountName"] = self._site.argo.service_account
        spec["securityContext"] = pods.security().model_dump(mode="json", by_alias=True, exclude_none=True)
        spec["volumes"] = [{"name": "tmp", "emptyDir": {}}]
        for template in spec["templates"]:
            if container := template.get("container"):
                container["image"] = os.environ["TRIPOD_IMAGE_DATA"]
                container["imagePullPolicy"] = "IfNotPresent"
                container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
                container["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
        return ours
