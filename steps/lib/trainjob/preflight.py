"""What is refused before a TrainJob is submitted: it would wait for ever, or be killed in its saves.

What the launcher's account may not read is not checked; Kueue's own message then says it later.
"""

from collections.abc import Callable
from typing import TypeVar

from steps.lib.errors import UserError
from steps.lib.kube import Cluster, Object, RefusedError
from steps.lib.kube.kinds import CLUSTER_QUEUE, CLUSTER_TRAINING_RUNTIME, CUSTOM_RESOURCE, LOCAL_QUEUE
from steps.lib.trainjob.place import Place
from steps.lib.trainjob.quota import Quota, choose_nodes, quota_of

T = TypeVar("T")
_TRAINJOBS = "trainjobs.trainer.kubeflow.org"
_PASSING = ("Stopped",)
"""Reasons of an inactive queue that pass: capacity holds queues while it moves nodes."""


def check(cluster: Cluster, place: Place) -> int:
    """Whether the cluster can take a training of this place.

    Returns:
        How many nodes to ask for.

    Raises:
        UserError: it cannot; says why and what is needed.
    """
    check_versions(cluster)
    check_runtime(cluster, place)
    quota = find_quota(cluster, place)
    return choose_nodes(place.sizes, place.gpus_per_node, quota, place.limit)


def check_versions(cluster: Cluster) -> None:
    """Kueue 0.17 starts a TrainJob by its field runtimePatches, which Trainer has since 2.2.

    Raises:
        UserError: this TrainJob lacks it.
    """
    definition = readable(lambda: cluster.get(CUSTOM_RESOURCE, "", _TRAINJOBS))
    if definition is None:
        return
    for version in definition["spec"]["versions"]:
        schema = version.get("schema", {}).get("openAPIV3Schema", {}).get("properties", {}).get("spec", {})
        if "properties" in schema and "runtimePatches" not in schema["properties"]:
            older = "2.1" if "podTemplateOverrides" in schema["properties"] else "2.0"
            raise UserError(
                f"gpu cluster: its TrainJob ({version['name']}) has no spec.runtimePatches, as in Trainer {older}; "
                "Kueue 0.17 and newer need it and would leave the job suspended; ask for Trainer 2.2 or newer"
            )


def check_runtime(cluster: Cluster, place: Place) -> None:
    """Whether the runtime is there and gives the grace that training counts on.

    Raises:
        UserError: it does not.
    """
    runtime = readable(lambda: cluster.get(CLUSTER_TRAINING_RUNTIME, "", place.runtime) or {})
    if runtime is None:
        return
    if not runtime:
        raise UserError(
            f"TRIPOD_GPU_RUNTIME: the gpu cluster has no ClusterTrainingRuntime {place.runtime}; "
            "config/clusters/gpu has one, ask the platform's operators to install it"
        )
    for job in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        given = int(job["template"]["spec"]["template"]["spec"].get("terminationGracePeriodSeconds", 30))
        if place.grace_s > given:
            raise UserError(
                f"run.grace_s: got {place.grace_s}, but runtime {place.runtime} kills its pods after {given} s; "
                f"allowed is {given} at most"
            )


def find_quota(cluster: Cluster, place: Place) -> Quota | None:
    """What the place's queue can give; None when that may not be read.

    Raises:
        UserError: there is no such queue, or it can admit nothing.
    """
    queue = readable(lambda: cluster.get(LOCAL_QUEUE, place.namespace, place.queue) or {})
    if queue is None:
        return None
    if not queue:
        raise UserError(f"TRIPOD_GPU_QUEUE: {_no_queue(cluster, place)}")
    _refuse_broken("LocalQueue", queue)
    queues = readable(lambda: cluster.list(CLUSTER_QUEUE, ""))
    if queues is None:
        return None
    name = queue["spec"]["clusterQueue"]
    quota = quota_of(name, queues)
    _refuse_broken("ClusterQueue", next(q for q in queues if q["metadata"]["name"] == name))
    return quota


def _no_queue(cluster: Cluster, place: Place) -> str:
    there = sorted(q["metadata"]["name"] for q in cluster.list(LOCAL_QUEUE, place.namespace))
    return f"namespace {place.namespace} has no LocalQueue {place.queue}; it has {', '.join(there) or 'none'}"


def _refuse_broken(kind: str, queue: Object) -> None:
    for condition in queue.get("status", {}).get("conditions") or ():
        if condition["type"] == "Active" and condition["status"] == "False" and not _passes(condition):
            raise UserError(
                f"{kind} {queue['metadata']['name']} admits nothing: {condition['reason']}: {condition['message']}; "
                "ask the platform's operators"
            )


def _passes(condition: Object) -> bool:
    """A LocalQueue whose ClusterQueue is stopped says `ClusterQueueIsInactive`: that one is looked at itself."""
    return condition["reason"] in _PASSING or condition["reason"] == "ClusterQueueIsInactive"


def readable(read: Callable[[], T]) -> T | None:
    """What `read` gives; None when our account may not read it."""
    try:
        return read()
    except RefusedError:
        return None
