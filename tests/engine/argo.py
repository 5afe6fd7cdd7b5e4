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
    """A run on Argo, followed in a thread.

    Args:
        as_is: what the follower takes the document for, where only Argo is to read it.
    """

    def __init__(self, workflows: Workflows, document: Document, scratch: Path, as_is: Document | None = None):
        self._workflows = workflows
        self.name = document["metadata"]["name"]
        self.events: list[Event] = []
        """All that was told."""
        self._started = time.monotonic()
        submit(workflows, document)
        workflow = parse_workflow((as_is or document) | {"metadata": {"name": self.name}})
        state = new_state(workflow, time.time())
        self._follower = Follower(workflows, workflow, state, scratch=scratch, listeners=[self.events.append])
        self._outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def wait_for_line(self, node: str, start: str) -> str:
        """See Running."""

        def found() -> str:
            return next((e.line for e in self._lines() if e.node == node and e.line.startswith(start)), "")

        return wait_until(found, f"a line {start!r} of {node}", DEADLINE_S)

    def cancel(self) -> None:
        """See Running."""
        cancel(self._workflows, self.name)

    def workflow(self) -> Document:
        """As it is on the cluster now."""
        there = self._workflows.get(self.name)
        assert there
        return there

    def result(self) -> Result:
        """See Running."""
        self._thread.join(DEADLINE_S)
        outcome = self._outcome
        assert outcome, f"{self.name} has not ended after {DEADLINE_S} s"
        logs: dict[str, list[LogLine]] = {}
        for event in self._lines():
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

    def _lines(self) -> list[LogLine]:
        return [event for event in self.events if isinstance(event, LogLine)]


class ArgoEngine:
    """Argo as the suite sees it."""

    def __init__(self, scratch: Path):
        self._site = load_site("lab").value
        self.workflows = KubernetesWorkflows(compute_cluster(self._site), self._site.argo.namespace)
        self.scratch = scratch
        self._image = next(os.environ[name] for name in IMAGES if os.environ.get(name))

    def start(self, document: Document) -> ArgoRun:
        """See Engine."""
        return self.start_dressed(self.dressed(document))

    def start_dressed(self, document: Document) -> ArgoRun:
        """Start a run of a document that is ready for the cluster."""
        return ArgoRun(self.workflows, document, self.scratch / document["metadata"]["name"])

    def run(self, document: Document) -> Result:
        """See Engine."""
        return self.start(document).result()

    def close(self) -> None:
        """Nothing runs here."""
        self.workflows.close()

    def dressed(self, document: Document) -> Document:
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
