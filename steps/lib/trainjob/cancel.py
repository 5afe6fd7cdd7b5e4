"""The documented way to stop a run's GPU jobs, whoever is still alive to do it.

Argo ends a launcher's pod the same way when a run is cancelled and when its node is drained, so a
cancel is told apart by a mark in the store, `runs/<id>/cancel`. `runs cancel` puts it there and calls
`cancel_train` itself; a launcher that is told to stop, or merely follows, looks for it and does the same.
"""

from collections.abc import Callable
from dataclasses import dataclass

from steps.lib.errors import Exit
from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import POD, TRAINJOB, WORKLOAD
from steps.lib.store import Store
from steps.lib.trainjob import attempts
from steps.lib.trainjob.build import ATTEMPT, KEY, RUN
from steps.lib.trainjob.objects import living
from steps.lib.wait import wait

_MARGIN_S = 60.0
"""Over the grace time, for controllers to act."""
_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Left:
    """A TrainJob of a run that is still there."""

    name: str
    namespace: str
    run_id: str
    created: str
    """RFC 3339."""
    num_pods: int
    """That hold nodes."""


def mark(run_id: str) -> str:
    """Key of the object that says that a run is cancelled."""
    return f"runs/{run_id}/cancel"


def ask_cancel(store: Store, run_id: str) -> None:
    """Mark a run as cancelled, for whoever looks after its GPU jobs."""
    store.put(mark(run_id), b"")


def withdraw_cancel(store: Store, run_id: str) -> None:
    """Forget the mark: the run is started again."""
    store.delete([mark(run_id)])


def is_cancelled(store: Store, run_id: str) -> bool:
    """Whether a run was marked as cancelled."""
    return store.head(mark(run_id)) is not None


def left_over(cluster: Cluster, namespace: str, run_id: str = "") -> list[Left]:
    """TrainJobs of a run ("": of all runs) that are still there, for `runs status` and exit handlers."""
    jobs = cluster.list(TRAINJOB, namespace, labels={RUN: run_id} if run_id else None)
    return [
        Left(
            name=job["metadata"]["name"],
            namespace=namespace,
            run_id=job["metadata"]["labels"][RUN],
            created=job["metadata"].get("creationTimestamp", ""),
            num_pods=len(living(pods_of(cluster, job))),
        )
        for job in jobs
        if RUN in job["metadata"].get("labels", {})
    ]


def cancel_train(
    cluster: Cluster,
    store: Store,
    *,
    namespace: str,
    run_id: str,
    grace_s: float,
    say: Callable[[str], None] = lambda line: None,
) -> list[str]:
    """Stop the TrainJobs of a run: checkpoint, evict, wait until the pods are gone, note the end, delete.

    May be called by several at once, and again.

    Args:
        grace_s: what the pods have to save their state.

    Returns:
        Names of the TrainJobs that were stopped.

    Raises:
        TemporaryError: a job's pods did not leave in time; it is evicted all the same.
    """
    jobs = cluster.list(TRAINJOB, namespace, labels={RUN: run_id})
    for job in jobs:
        stop(cluster, job, grace_s=grace_s, say=say)
        labels = job["metadata"]["labels"]
        attempts.end(store, labels[KEY], int(labels[ATTEMPT]), code=Exit.CANCELLED, why=f"run {run_id} was cancelled")
        cluster.delete(TRAINJOB, namespace, job["metadata"]["name"], uid=job["metadata"]["uid"])
    return [job["metadata"]["name"] for job in jobs]


def stop(cluster: Cluster, job: Object, *, grace_s: float, say: Callable[[str], None]) -> None:
    """Evict a TrainJob through Kueue and wait until its pods are gone: they save a checkpoint.

    Raises:
        TemporaryError: they did not leave in time.
    """
    meta = job["metadata"]
    work = workload_of(cluster, job)
    if work is not None:
        cluster.patch(WORKLOAD, meta["namespace"], work["metadata"]["name"], {"spec": {"active": False}})
    else:  # Kueue has not taken it up, or does not manage this namespace
        cluster.patch(TRAINJOB, meta["namespace"], meta["name"], {"spec": {"suspend": True}})
    say(f"gpu: {meta['name']} was asked to save and leave")
    wait(
        lambda: not living(pods_of(cluster, job)),
        what=f"pods of {meta['name']} are gone",
        timeout_s=grace_s + _MARGIN_S,
        state=lambda: f"{len(living(pods_of(cluster, job)))} are left",
        say=say,
        every_s=_POLL_S,
    )


def workload_of(cluster: Cluster, job: Object) -> Object | None:
    """Kueue's object for a TrainJob."""
    meta = job["metadata"]
    found = cluster.list(WORKLOAD, meta["namespace"], labels={"kueue.x-k8s.io/job-uid": meta["uid"]})
    return found[0] if found else None


def pods_of(cluster: Cluster, job: Object) -> list[Object]:
    """A TrainJob's pods: its JobSet has its name."""
    labels = {"jobset.sigs.k8s.io/jobset-name": job["metadata"]["name"]}
    return cluster.list(POD, job["metadata"]["namespace"], labels=labels)
