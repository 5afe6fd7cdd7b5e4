"""Where Workflows are kept: behind the Kubernetes API, or behind an Argo server (server.py)."""

from collections.abc import Iterator
from typing import Protocol

from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import EVENT, POD, WORKFLOW
from steps.lib.kube.waits import why_it_waits

MAIN = "main"
"""Argo's name for the container of a step."""


class Workflows(Protocol):
    """The Workflows of one namespace.

    Every method raises
        UserError: the server refuses (steps.lib.kube.RefusedError), or another object has the name (ExistsError).
        TemporaryError: it stayed away.
    """

    place: str
    """Where they are, for messages: `namespace team-a of the compute cluster`."""

    def get(self, name: str) -> Object | None:
        """One Workflow, or None."""

    def list(self) -> list[Object]:
        """All of them; of each at least its name and phase."""

    def create(self, body: Object) -> Object:
        """Create one; a first try whose reply was lost is recognised by the annotation `tripod/spec`."""

    def remove(self, workflow: Object) -> None:
        """Delete this very Workflow, with its pods."""

    def terminate(self, name: str) -> None:
        """Ask for its end: running pods get SIGTERM, nothing new starts, the exit handler does not run."""

    def log(self, workflow: str, pod: str, *, follow: bool, since: str) -> Iterator[tuple[str, bytes]]:
        """Lines of a step's pod, each with its time, after the time `since`; none when it has not started or is gone."""

    def has_pod(self, workflow: str, pod: str) -> bool:
        """Whether a pod is there; True where that cannot be known."""

    def why_it_waits(self, pod: str) -> str:
        """Why a pod does not start, or ""."""

    def close(self) -> None:
        """Give the connections back."""


class KubernetesWorkflows:
    """Those behind the Kubernetes API."""

    def __init__(self, cluster: Cluster, namespace: str):
        self._cluster, self._namespace = cluster, namespace
        self.place = f"namespace {namespace} of the {cluster.name} cluster"

    def get(self, name: str) -> Object | None:
        """See Workflows."""
        return self._cluster.get(WORKFLOW, self._namespace, name)

    def list(self) -> list[Object]:
        """See Workflows."""
        return self._cluster.list(WORKFLOW, self._namespace)

    def create(self, body: Object) -> Object:
        """See Workflows."""
        body = body | {"metadata": body["metadata"] | {"namespace": self._namespace}}
        return self._cluster.create(WORKFLOW, body)

    def remove(self, workflow: Object) -> None:
        """See Workflows."""
        meta = workflow["metadata"]
        self._cluster.delete(WORKFLOW, self._namespace, meta["name"], uid=meta["uid"])

    def terminate(self, name: str) -> None:
        """See Workflows."""
        self._cluster.patch(WORKFLOW, self._namespace, name, {"spec": {"shutdown": "Terminate"}})

    def log(self, workflow: str, pod: str, *, follow: bool, since: str) -> Iterator[tuple[str, bytes]]:
        """See Workflows."""
        return self._cluster.log(self._namespace, pod, container=MAIN, follow=follow, since=since)

    def has_pod(self, workflow: str, pod: str) -> bool:
        """See Workflows."""
        return self._cluster.get(POD, self._namespace, pod) is not None

    def why_it_waits(self, pod: str) -> str:
        """See Workflows."""
        there = self._cluster.get(POD, self._namespace, pod)
        events = self._cluster.list(EVENT, self._namespace, field=f"involvedObject.name={pod}")
        return why_it_waits(there, events)

    def close(self) -> None:
        """See Workflows."""
        self._cluster.close()
