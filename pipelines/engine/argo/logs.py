"""What the pods of a workflow write, each attempt into a file of its own, as it comes."""

import threading
from collections.abc import Callable
from pathlib import Path

from steps.lib.errors import TripodError
from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import POD

_NODE_ID = "workflows.argoproj.io/node-id"
_AGAIN_S = 1.0
MAIN = "main"
"""Argo's name for the container of the step."""


class PodLog:
    """Follows one attempt's pod in a thread of its own.

    Args:
        node_id: Argo's name of the attempt.
        path: gets every byte that it writes.
        line: called with each line.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, run: str, node_id: str, path: Path, line: Callable[[str], None]
    ):
        self._cluster, self._namespace, self._run, self._node_id = cluster, namespace, run, node_id
        self._path, self._line = path, line
        self._ended = threading.Event()
        self._pod = ""
        self._last = ""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self._thread = threading.Thread(target=self._follow, name=f"log {node_id}", daemon=True)
        self._thread.start()

    def end(self, timeout_s: float = 10) -> None:
        """The attempt has ended: take what is still to come, and stop."""
        self._ended.set()
        self._thread.join(timeout_s)

    def _follow(self) -> None:
        while True:
            last_time = self._ended.is_set()
            try:
                self._pod = self._pod or self._find()
                if self._pod:
                    self._read(follow=not last_time)
            except TripodError as e:
                if last_time:
                    self._line(f"warning: the log is not whole: {e}")
            if last_time:
                return
            self._ended.wait(_AGAIN_S)

    def _find(self) -> str:
        pods = self._cluster.list(POD, self._namespace, labels={"workflows.argoproj.io/workflow": self._run})
        return next((_name(pod) for pod in pods if _annotations(pod).get(_NODE_ID) == self._node_id), "")

    def _read(self, *, follow: bool) -> None:
        lines = self._cluster.log(self._namespace, self._pod, container=MAIN, follow=follow, since=self._last)
        with self._path.open("ab", buffering=0) as file:
            for self._last, line in lines:
                file.write(line + b"\n")
                self._line(line.decode(errors="replace").rstrip("\r"))


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _annotations(pod: Object) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("annotations") or {}
    return found
