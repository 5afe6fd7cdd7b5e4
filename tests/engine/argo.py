"""Argo on a real cluster as the conformance suite sees it. Needs TRIPOD_COMPUTE_KUBECONFIG and an image (IMAGES)."""

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
from pipelines.engine.argo.workflows import KubernetesWorkflows, Workflows
from pipelines.engine.events import Event, LogLine, Outcome
from pipelines.engine.templates import OUTPUTS_FOLDER
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import new_state
from pipelines.settings.load import load_site
from tests.engine.engines import Result, wait_until
from tests.engine.workflows import Document

DEADLINE_S = 300
KEPT_S = 1800
"""How long a workflow can be looked at after a test."""
IMAGES = ("TRIPOD_LAB_IMAGE", "TRIPOD_IMAGE_DATA", "TRIPOD_IMAGE_TRAIN")
"""Variables that name an image with Python in it, by digest; the first that is set counts."""


class ArgoRun:
    """A run on Argo, followed in a thread."""

    def __init__(self, workflows: Workflows, document: Document, scratch: Path):
        self._workflows = workflows
        self._name = document["metadata"]["name"]
        self._lines: list[LogLine] = []
        self._started = time.monotonic()
        submit(workflows, document)
        workflow = parse_workflow(document)
        state = new_state(workflow, time.time())
        self._follower = Follower(workflows, workflow, state, scratch=scratch, listeners=[self._listen])
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
        cancel(self._workflows, self._name)

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
    """Argo as the suite sees it."""

    def __init__(self, scratch: Path):
        self._site = load_site("lab").value
        self._workflows = KubernetesWorkflows(compute_cluster(self._site), self._site.argo.namespace)
        self._scratch = scratch
        self._image = next(os.environ[name] for name in IMAGES if os.environ.get(name))

    def start(self, document: Document) -> ArgoRun:
        """See Engine."""
        ours = self._dressed(document)
        return ArgoRun(self._workflows, ours, self._scratch / ours["metadata"]["name"])

    def run(self, document: Document) -> Result:
        """See Engine."""
        return self.start(document).result()

    def close(self) -> None:
        """Nothing runs here."""
        self._workflows.close()

    def _dressed(self, document: Document) -> Document:
        """What our builders put around a workflow for a cluster."""
        ours = copy.deepcopy(document)
        ours["metadata"]["name"] = f"conformance-{secrets.token_hex(4)}"
        spec = ours["spec"]
        spec["serviceAccountName"] = self._site.argo.service_account
        spec["securityContext"] = pods.security().model_dump(mode="json", by_alias=True, exclude_none=True)
        spec["ttlStrategy"] = {"secondsAfterCompletion": KEPT_S}
        spec["volumes"] = [{"name": "outputs", "emptyDir": {}}]
        for template in spec["templates"]:
            if container := template.get("container"):
                container["image"] = self._image
                container["env"] = [*container.get("env", []), {"name": "CLOCK_S", "value": "10"}]
                container["imagePullPolicy"] = "IfNotPresent"
                container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
                container["volumeMounts"] = [{"name": "outputs", "mountPath": OUTPUTS_FOLDER}]
        return ours
