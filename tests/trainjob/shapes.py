"""Objects of Kubernetes, Kueue 0.17, JobSet 0.11 and Trainer 2.2 in the shapes that their controllers write."""

from datetime import UTC, datetime
from typing import Any

NOW = 1_790_000_000.0
NAME = "train-0123456789abcdef-1"
Object = dict[str, Any]


def stamp(age_s: float) -> str:
    """RFC 3339 time of `age_s` seconds before NOW."""
    return datetime.fromtimestamp(NOW - age_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(kind: str, status: bool, reason: str = "", message: str = "", age_s: float = 10) -> Object:
    """One condition."""
    return {
        "type": kind,
        "status": str(status),
        "reason": reason or kind,
        "message": message,
        "lastTransitionTime": stamp(age_s),
    }


def train_job(*conditions: Object, nodes: int = 2, age_s: float = 100, **meta: Any) -> Object:
    """A TrainJob."""
    return {
        "metadata": {
            "name": NAME,
            "namespace": "team-a",
            "uid": "u1",
            "creationTimestamp": stamp(age_s),
            "labels": {"kueue.x-k8s.io/queue-name": "train", "tripod/run": "monday"},
            **meta,
        },
        "spec": {"suspend": True, "trainer": {"numNodes": nodes, "numProcPerNode": 8}},
        "status": {"conditions": list(conditions)},
    }


RESUMED = condition("Suspended", False, "Resumed", "TrainJob is resumed")
SUSPENDED = condition("Suspended", True, "Suspended", "TrainJob is suspended")


def workload(
    *conditions: Object,
    name: str = "trainjob-x",
    priority: int = 1000,
    age_s: float = 90,
    evicted: int = 0,
    **spec: Any,
) -> Object:
    """A Workload as Kueue makes one for a TrainJob."""
    stats = {"evictions": [{"reason": "Preempted", "underlyingCause": "", "count": evicted}]} if evicted else None
    return {
        "metadata": {"name": name, "namespace": "team-a", "creationTimestamp": stamp(age_s)},
        "spec": {"queueName": "train", "priority": priority, "active": True, **spec},
        "status": {"conditions": list(conditions)} | ({"schedulingStats": stats} if stats else {}),
    }


PENDING = condition(
    "QuotaReserved",
    False,
    "Pending",
    "couldn't assign flavors to pod set node: insufficient unused quota for nvidia.com/gpu in flavor training, 16 more needed",
)
RESERVED = condition("QuotaReserved", True, "QuotaReserved", "Quota reserved in ClusterQueue team-a")
ADMITTED = condition("Admitted", True, "Admitted", "The workload is admitted")
PREEMPTED = condition(
    "Evicted", True, "Preempted", "Preempted to accommodate a workload (UID: 7) due to prioritization"
)


def jobset(*conditions: Object) -> Object:
    """A JobSet."""
    return {"metadata": {"name": NAME, "namespace": "team-a"}, "status": {"conditions": list(conditions)}}


def pod(
    index: int,
    phase: str = "Running",
    *,
    code: int | None = None,
    said: str = "",
    ended_s: float = 5,
    waiting: tuple[str, str] | None = None,
    conditions: tuple[Object, ...] = (),
    leaving: bool = False,
    selector: dict[str, str] | None = None,
) -> Object:
    """A training pod; `code` makes its container one that has ended."""
    state: Object = {"running": {"startedAt": stamp(60)}} if phase == "Running" else {}
    if code is not None:
        phase = "Succeeded" if code == 0 else "Failed"
        state = {"terminated": {"exitCode": code, "message": said, "finishedAt": stamp(ended_s), "reason": "Error"}}
    if waiting:
        state = {"waiting": {"reason": waiting[0], "message": waiting[1]}}
    meta: Object = {
        "name": f"{NAME}-node-0-{index}-abcde",
        "namespace": "team-a",
        "uid": f"p{index}",
        "labels": {"batch.kubernetes.io/job-completion-index": str(index)},
    }
    if leaving:
        meta["deletionTimestamp"] = stamp(1)
    spec: Object = {"nodeSelector": selector or {}}
    if phase in ("Running", "Succeeded", "Failed"):
        spec["nodeName"] = f"b300-{index + 3}"
    status: Object = {"phase": phase, "conditions": list(conditions)}
    if state:
        status["containerStatuses"] = [{"name": "node", "state": state}]
    return {"metadata": meta, "spec": spec, "status": status}


def queue(name: str = "train", *conditions: Object, **spec: Any) -> Object:
    """A LocalQueue or ClusterQueue."""
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": list(conditions)}}


def cluster_queue(name: str, gpus: int | None, *, cohort: str = "training", **quota: Any) -> Object:
    """A ClusterQueue with a quota of GPUs; None: it covers none."""
    resources: list[Object] = [{"name": "cpu", "nominalQuota": "1k"}]
    if gpus is not None:
        resources.append({"name": "nvidia.com/gpu", "nominalQuota": str(gpus), **quota})
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "resourceGroups": [{"flavors": [{"name": "training", "resources": resources}]}]},
    }
