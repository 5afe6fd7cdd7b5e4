"""Plays Kueue, Trainer, JobSet and the kubelet on the API server of a test: admits, runs, ends, evicts."""

import threading
from collections.abc import Callable
from typing import Any

from steps.lib.kube.kinds import CLUSTER_QUEUE, JOBSET, LOCAL_QUEUE, POD, TRAINJOB, WORKLOAD
from tests.kube.api import Api, Object
from tests.trainjob.shapes import condition, stamp

NAMESPACE = "team-a"


def install_queue(api: Api, gpus: int = 96) -> None:
    """Queue `train` of team-a."""
    api.put(LOCAL_QUEUE, {"metadata": {"name": "train", "namespace": NAMESPACE}, "spec": {"clusterQueue": "team-a"}})
    set_quota(api, gpus)


def set_quota(api: Api, gpus: int) -> None:
    """GPUs of the queue from now on."""
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": str(gpus)}]
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "training", "resources": resources}]}]
    api.put(CLUSTER_QUEUE, {"metadata": {"name": "team-a"}, "spec": {"resourceGroups": groups}})


class Controllers:
    """A thread that brings every TrainJob forward.

    Args:
        pods: what the pods of a TrainJob do: exit code and last words of each, once they have run.
            They run while it blocks.
        admit: whether Kueue admits it.
    """

    def __init__(
        self,
        api: Api,
        pods: Callable[[Object], list[tuple[int, str]]],
        *,
        admit: Callable[[Object], bool] = lambda job: True,
    ):
        self.api, self.pods, self.admit = api, pods, admit
        self.leave = threading.Event()
        self.running: dict[str, threading.Thread] = {}
        self.thread = threading.Thread(target=self._work)

    def __enter__(self) -> "Controllers":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave.set()
        self.thread.join()
        for thread in self.running.values():
            thread.join()

    def _work(self) -> None:
        while not self.leave.wait(0.02):
            with self.api.lock:
                for job in self.api.of(TRAINJOB, NAMESPACE):
                    self._reconcile(job)
                self._collect()

    def _reconcile(self, job: Object) -> None:
        uid, name = job["metadata"]["uid"], job["metadata"]["name"]
        works = [
            w for w in self.api.of(WORKLOAD, NAMESPACE) if w["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == uid
        ]
        if not works:
            works = [self._make_workload(job)]
        (work,) = works
        if not work["spec"]["active"]:
            work["status"]["conditions"] = [condition("Evicted", True, "Deactivated", "The workload is deactivated")]
            self._remove_pods(name)
        elif not self.admit(job):
            work["status"]["conditions"] = [condition("QuotaReserved", False, "Pending", "insufficient unused quota")]
        elif uid not in self.running:
            work["status"]["conditions"] = [condition("QuotaReserved", True), condition("Admitted", True)]
            self._make_pods(job)
            self.running[uid] = threading.Thread(target=self._run, args=(job,))
            self.running[uid].start()

    def _make_workload(self, job: Object) -> Object:
        labels = {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}
        meta = {"name": f"trainjob-{job['metadata']['name']}", "namespace": NAMESPACE, "labels": labels}
        spec = {"active": True, "queueName": job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "priority": 0}
        return self.api.put(WORKLOAD, {"metadata": meta, "spec": spec, "status": {"conditions": []}})

    def _make_pods(self, job: Object) -> None:
        name = job["metadata"]["name"]
        self.api.put(JOBSET, {"metadata": {"name": name, "namespace": NAMESPACE}})
        for number in range(job["spec"]["trainer"]["numNodes"]):
            labels = {
                "jobset.sigs.k8s.io/jobset-name": name,
                "batch.kubernetes.io/job-completion-index": str(number),
            }
            meta = {"name": f"{name}-node-0-{number}-x", "namespace": NAMESPACE, "labels": labels}
            status = {"phase": "Running", "containerStatuses": [{"name": "node", "state": {"running": {}}}]}
            self.api.put(POD, {"metadata": meta, "spec": {"nodeName": f"b300-{number}"}, "status": status})

    def _run(self, job: Object) -> None:
        ends = self.pods(job)
        with self.api.lock:
            name = job["metadata"]["name"]
            for number, (code, said) in enumerate(ends):
                pod = self.api.objects.get(POD.path(NAMESPACE, f"{name}-node-0-{number}-x"))
                if pod:
                    ended = {
                        "exitCode": code,
                        "message": said,
                        "finishedAt": stamp(0),
                        "reason": "Error" if code else "Completed",
                    }
                    pod["status"] = {
                        "phase": "Failed" if code else "Succeeded",
                        "containerStatuses": [{"name": "node", "state": {"terminated": ended}}],
                    }
            jobset = self.api.objects.get(JOBSET.path(NAMESPACE, name))
            if jobset and ends:
                bad = any(code for code, _ in ends)
                jobset["status"] = {
                    "conditions": [condition("Failed" if bad else "Completed", True, "ReachedMaxRestarts")]
                }

    def _collect(self) -> None:
        """What belongs to no TrainJob any more goes."""
        names = {job["metadata"]["name"] for job in self.api.of(TRAINJOB, NAMESPACE)}
        for jobset in self.api.of(JOBSET, NAMESPACE):
            if jobset["metadata"]["name"] not in names:
                self._remove_pods(jobset["metadata"]["name"])
                self.api.remove(JOBSET, NAMESPACE, jobset["metadata"]["name"])

    def _remove_pods(self, job: str) -> None:
        for pod in self.api.of(POD, NAMESPACE):
            if pod["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == job:
                self.api.remove(POD, NAMESPACE, pod["metadata"]["name"])


def train_jobs(api: Api) -> list[str]:
    """Names of all TrainJobs that were ever created, in order."""
    return [path.rpartition("/")[2] for path in api.created if f"/{TRAINJOB.plural}/" in path]


def env_of(job: Object) -> dict[str, Any]:
    """Environment that a TrainJob gives to its pods."""
    return {var["name"]: var["value"] for var in job["spec"]["trainer"]["env"]}
