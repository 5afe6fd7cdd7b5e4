"""The logs of a training's pods: followed while they run, kept in parts in the store, node 0's lines repeated.

    runs/<id>/logs/<pod>/<n>/part-00000.log ...      n: 0, or more when an earlier launcher had begun

One thread a pod reads; the launcher's loop copies what is due.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from steps.lib.errors import TemporaryError, TripodError
from steps.lib.kube import Cluster, Object
from steps.lib.log_parts import LogCopy, log_prefix, part_key
from steps.lib.store import Store
from steps.lib.trainjob.objects import CONTAINER, exit_code, index, pod_name

_AGAIN_S = 1.0


class PodLogs:
    """Follows the pods that it is shown.

    Args:
        folder: local files, one a pod.
        tell: gets the lines of node 0.
    """

    def __init__(self, cluster: Cluster, store: Store, *, run_id: str, folder: Path, tell: Callable[[str], None]):
        self._cluster, self._store, self._run_id = cluster, store, run_id
        self._folder, self._tell = folder, tell
        self._pods: dict[str, _Follower] = {}

    def look_at(self, pods: Sequence[Object]) -> None:
        """Follow what is new; note which containers have ended, or are gone with their pod."""
        seen = set()
        for pod in pods:
            seen.add(uid := pod["metadata"]["uid"])
            if uid not in self._pods and pod["status"].get("phase") in ("Running", "Succeeded", "Failed"):
                self._pods[uid] = self._follow(pod)
            if uid in self._pods and exit_code(pod) is not None:
                self._pods[uid].ended.set()
        for uid in self._pods.keys() - seen:
            self._pods[uid].ended.set()

    def copy(self) -> None:
        """Write what is due to the store."""
        for follower in self._pods.values():
            if not follower.copied.done:
                follower.copied.ended = not follower.thread.is_alive()
                follower.copied.copy()

    def close(self, timeout_s: float) -> None:
        """Read the logs of ended containers to their end, and write all that there is."""
        for follower in self._pods.values():
            if follower.ended.is_set():
                follower.thread.join(timeout_s)
            follower.leave.set()
            follower.copied.ended = True
            follower.copied.copy()

    def _follow(self, pod: Object) -> "_Follower":
        name = pod_name(pod)
        number = 0
        while self._store.head(part_key(log_prefix(self._run_id, name, number), 0)):
            number += 1
        path = self._folder / f"{name}.log"
        copied = LogCopy(self._store, log_prefix(self._run_id, name, number), path)
        tell = self._tell if index(pod) == 0 else None
        return _Follower(self._cluster, pod["metadata"]["namespace"], name, copied, tell)


class _Follower:
    """One pod's log on its way to a local file."""

    def __init__(self, cluster: Cluster, namespace: str, pod: str, copied: LogCopy, tell: Callable[[str], None] | None):
        self.cluster, self.namespace, self.pod = cluster, namespace, pod
        self.copied = copied
        self.tell = tell
        self.ended = threading.Event()
        """The container writes no more."""
        self.leave = threading.Event()
        self.thread = threading.Thread(target=self._work, name=f"log {pod}", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        since = ""
        with self.copied.path.open("ab", buffering=0) as file:
            while not self.leave.is_set():
                last = self.ended.is_set()  # before reading: then nothing can come after it
                try:
                    since = self._read(file.write, since, follow=not last)
                except TripodError as e:
                    if last and isinstance(e, TemporaryError):
                        last = False
                    elif last:
                        file.write(f"warning: the log is not whole: {e}\n".encode())
                if last:
                    return
                self.leave.wait(_AGAIN_S)

    def _read(self, write: Callable[[bytes], object], since: str, *, follow: bool) -> str:
        lines = self.cluster.log(self.namespace, self.pod, container=CONTAINER, follow=follow, since=since)
        for stamp, line in lines:
            write(line + b"\n")
            since = stamp
            if self.tell:
                self.tell(line.decode(errors="replace"))
            if self.leave.is_set():
                break
        return since
