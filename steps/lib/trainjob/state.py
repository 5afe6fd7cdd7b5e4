"""What is happening to a TrainJob, from the objects around it -> one phase with its reason. Pure.

A TrainJob's own conditions lie: after Kueue has resumed it, it still says `Suspended` while its pods
run. So pods are believed first, then JobSet, then Workload, and the TrainJob last.

    Created -> Queued -> Admitted -> Starting -> Running -> Ending -> Succeeded | Failed
                  ^                     ^           |         |
                  +---- Evicted <-------|-----------+         |     Stuck: will not go on by itself, and why
                                        +------ restart ------+
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from steps.lib.errors import Exit, is_retryable
from steps.lib.kube import Object, seconds
from steps.lib.trainjob.objects import (
    SETTLE_S,
    condition,
    exit_code,
    index,
    is_true,
    living,
    node_name,
    pod_name,
    terminated,
    trouble,
)

SIDE = "tripod.dev/side"
"""Label, and key of the taint, of servers: training or inference."""
MAX_EVICTIONS = 5
"""So many without a new checkpoint between them are no progress."""
_START_S = 180.0
"""From admission to the first pod, or to pods again after a restart."""
_HELD_S = 600.0
"""An evicted Workload that still holds its quota after this long never gives it back."""


class Phase(StrEnum):
    """Where a TrainJob is."""

    GONE = "Gone"
    CREATED = "Created"
    QUEUED = "Queued"
    ADMITTED = "Admitted"
    STARTING = "Starting"
    RUNNING = "Running"
    ENDING = "Ending"
    EVICTED = "Evicted"
    STUCK = "Stuck"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The objects around one TrainJob at one moment."""

    train_job: Object | None
    workload: Object | None = None
    jobset: Object | None = None
    jobs: Sequence[Object] = ()
    """Of the JobSet."""
    pods: Sequence[Object] = ()
    """Of the JobSet."""
    local_queue: Object | None = None
    cluster_queue: Object | None = None
    """None: may not be read."""
    neighbours: Sequence[Object] = ()
    """All Workloads of the namespace: the queue."""
    nodes: Sequence[Object] = ()
    """Of the training side; none when they may not be read."""
    idle_evictions: int = 0
    """Evictions since the last new checkpoint."""
    now: float
    """Seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class State:
    """One phase, why, and what belongs to it."""

    phase: Phase
    why: str = ""
    """One line; may be empty."""
    code: int = 0
    """Of the exit table, when it has failed."""
    holds_gpus: bool = False
    """Whether a stuck job keeps others from using its GPUs."""
    nodes: tuple[str, ...] = ()
    """Names of the nodes of pods 0, 1, ...; empty until all are placed."""

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.GONE)

    def __str__(self) -> str:
        return f"{self.phase}: {self.why}" if self.why else str(self.phase)


def state_of(seen: Seen) -> State:
    """The phase of the TrainJob."""
    if seen.train_job is None:
        return State(phase=Phase.GONE, why="it was deleted")
    return _ended(seen) or _pods(seen) or _queue(seen)


# ---- the end -------------------------------------------------------------------------------------


def _ended(seen: Seen) -> State | None:
    assert seen.train_job
    final = _final_exit(seen.pods)
    if final:
        return final
    if is_true(seen.jobset, "Completed") or is_true(seen.train_job, "Complete"):
        return State(phase=Phase.SUCCEEDED)
    failed = is_true(seen.jobset, "Failed") or is_true(seen.train_job, "Failed")
    if not failed:
        return None
    return (
        _last_exit(seen.pods)
        or _told_by_jobs(seen.jobs)
        or State(phase=Phase.FAILED, code=Exit.TEMPORARY, why=f"{failed['reason']}: {failed['message']}")
    )


def _final_exit(pods: Sequence[Object]) -> State | None:
    """A code that no restart can mend ends the job even before its controllers say so."""
    return _exit_of([pod for pod in pods if (code := exit_code(pod)) and not is_retryable(code)])


def _last_exit(pods: Sequence[Object]) -> State | None:
    return _exit_of([pod for pod in pods if exit_code(pod)])


def _exit_of(pods: Sequence[Object]) -> State | None:
    """The first of these pods to end: what ended later may be its echo."""
    if not pods:
        return None
    first = min(pods, key=lambda pod: str(terminated(pod).get("finishedAt", "")))
    ended = terminated(first)
    lines = str(ended.get("message") or "").strip().splitlines()
    why = lines[-1].strip() if lines else str(ended.get("reason") or "")
    return State(phase=Phase.FAILED, code=int(ended["exitCode"]), why=f"{pod_name(first)} on {node_name(first)}: {why}")


def _told_by_jobs(jobs: Sequence[Object]) -> State | None:
    """The pods are gone, their Job still says how one of them ended."""
    for job in jobs:
        failed = is_true(job, "Failed")
        found = re.search(r"failed with exit code (\d+)", failed["message"]) if failed else None
        if failed and found:
            return State(phase=Phase.FAILED, code=int(found[1]), why=failed["message"])
    return None


# ---- pods ----------------------------------------------------------------------------------------


def _pods(seen: Seen) -> State | None:
    """What the pods say; None when there are none, or none that matter."""
    assert seen.train_job
    alive = living(seen.pods)
    if not alive:
        return None
    evicted = is_true(seen.workload, "Evicted")
    if evicted and all("deletionTimestamp" in pod["metadata"] for pod in alive):
        return State(
            phase=Phase.EVICTED, why=f"{evicted['reason']}: {evicted['message']}; {len(alive)} pods save and leave"
        )
    if seen.idle_evictions >= MAX_EVICTIONS:
        return _no_progress(seen)
    wanted = int(seen.train_job["spec"].get("trainer", {}).get("numNodes") or 1)
    running = [pod for pod in alive if pod["status"].get("phase") == "Running"]
    if len(running) >= wanted:
        return State(
            phase=Phase.RUNNING, why=f"{wanted} pods", nodes=tuple(node_name(pod) for pod in sorted(running, key=index))
        )
    troubles = [text for pod in alive if (text := trouble(pod, seen.now))]
    if troubles:
        more = f" (and {len(troubles) - 1} more)" if len(troubles) > 1 else ""
        return State(phase=Phase.STUCK, why=troubles[0] + more, holds_gpus=True)
    return State(phase=Phase.STARTING, why=f"{len(running)} of {wanted} pods run")


def _no_progress(seen: Seen) -> State:
    return State(
        phase=Phase.STUCK,
        why=f"no progress over {seen.idle_evictions} evictions: not one new checkpoint between them; "
        "raise its priority, or mend the queues' preemption settings",
        holds_gpus=True,
    )


# ---- the queue -----------------------------------------------------------------------------------


def _queue(seen: Seen) -> State:
    """No pod lives: what Kueue says."""
    assert seen.train_job
    if "deletionTimestamp" in seen.train_job["metadata"]:
        return State(phase=Phase.GONE, why="it is being deleted")
    if seen.idle_evictions >= MAX_EVICTIONS:
        return _no_progress(seen)
    if seen.workload is None:
        return _without_workload(seen)
    work = seen.workload
    evicted, reserved = is_true(work, "Evicted"), is_true(work, "QuotaReserved")
    if not work["spec"].get("active", True):
        return _deactivated(work, evicted)
    if reserved and evicted:
        return _held(seen, evicted)
    if reserved:
        admitted = is_true(work, "Admitted")
        if admitted is None:
            return State(phase=Phase.QUEUED, why=f"quota is reserved, admission checks are open: {reserved['message']}")
        return _admitted(seen, admitted)
    return _waiting(seen, work)


def _without_workload(seen: Seen) -> State:
    assert seen.train_job
    age = seen.now - seconds(seen.train_job["metadata"].get("creationTimestamp"))
    queue = seen.train_job["metadata"].get("labels", {}).get("kueue.x-k8s.io/queue-name", "")
    if age < SETTLE_S:
        return State(phase=Phase.CREATED)
    if seen.local_queue is None:
        return State(phase=Phase.STUCK, why=f"LocalQueue {queue} is not there")
    return State(
        phase=Phase.STUCK,
        why=f"Kueue has made no Workload for it in {age:.0f} s; does Kueue run, and Trainer 2.2 or newer?",
    )


def _deactivated(work: Object, evicted: dict[str, Any] | None) -> State:
    name, namespace = work["metadata"]["name"], work["metadata"]["namespace"]
    told = f": {evicted['message']}" if evicted else ""
    return State(
        phase=Phase.STUCK,
        why=f"its Workload is deactivated{told}; `kubectl -n {namespace} patch workload {name} --type=merge "
        """-p '{"spec":{"active":true}}'` lets it go on""",
    )


def _held(seen: Seen, evicted: dict[str, Any]) -> State:
    assert seen.workload
    name, namespace = seen.workload["metadata"]["name"], seen.workload["metadata"]["namespace"]
    age = seen.now - seconds(evicted.get("lastTransitionTime"))
    if age < _HELD_S:
        return State(phase=Phase.EVICTED, why=f"{evicted['reason']}: {evicted['message']}")
    return State(
        phase=Phase.STUCK,
        why=f"was evicted {age / 60:.0f} min ago ({evicted['reason']}) and has no pods, but still holds its quota; "
        f"`kubectl -n {namespace} delete workload {name}` frees it, Kueue makes a new one",
        holds_gpus=True,
    )


def _admitted(seen: Seen, admitted: dict[str, Any]) -> State:
    codes = [exit_code(pod) for pod in seen.pods]
    if codes and None not in codes:
        return State(phase=Phase.ENDING, why=f"its pods have ended, exit codes {', '.join(map(str, codes))}")
    age = seen.now - seconds(admitted.get("lastTransitionTime"))
    if age < _START_S:
        return State(phase=Phase.ADMITTED, why="pods are being made")
    return State(
        phase=Phase.STUCK,
        why=f"was admitted {age:.0f} s ago, but no pod was made; the events of the TrainJob, and Kueue's log, say why",
        holds_gpus=True,
    )


def _waiting(seen: Seen, work: Object) -> State:
    queue = work["spec"].get("queueName", "")
    closed = _closed(seen, queue)
    if closed:
        return State(phase=Phase.STUCK, why=closed)
    pending = condition(work, "QuotaReserved")
    told = str(pending["message"]) if pending else "Kueue has not looked at it yet"
    if pending and pending.get("reason") == "Inadmissible" and seen.local_queue is None:
        return State(phase=Phase.STUCK, why=told)
    again = condition(work, "Evicted")
    after = f" after eviction ({again['reason']})" if again and evictions(work) else ""
    place, of = position(work, seen.neighbours)
    return State(phase=Phase.QUEUED, why=f"{place} of {of} in {queue}{after}: {told}{_out(seen.nodes)}")


def _out(nodes: Sequence[Object]) -> str:
    """Which servers of the training side take no pods: Kueue only counts what is left."""
    why = {node["metadata"]["name"]: _why_out(node) for node in nodes}
    out = [f"{name} {reason}" for name, reason in sorted(why.items()) if reason]
    return f"; servers that are out: {', '.join(out)}" if out else ""


def _why_out(node: Object) -> str:
    if not is_true(node, "Ready"):
        return "is not ready"
    if node["spec"].get("unschedulable"):
        return "is cordoned"
    taints = [t for t in node["spec"].get("taints") or [] if t["key"] != SIDE and t["effect"] != "PreferNoSchedule"]
    return f"is tainted {taints[0]['key']}" if taints else ""


def _closed(seen: Seen, queue: str) -> str:
    """Why nothing at all is admitted through this queue; "" when that is not so."""
    for kind, found in (("LocalQueue", seen.local_queue), ("ClusterQueue", seen.cluster_queue)):
        active = condition(found, "Active")
        if found and active and active["status"] == "False":
            return f"{kind} {found['metadata']['name']} admits nothing: {active['reason']}: {active['message']}"
    return ""


def position(work: Object, neighbours: Sequence[Object]) -> tuple[int, int]:
    """Place of a Workload among those of its namespace that wait in its queue, and how many wait."""
    queue = work["spec"].get("queueName")
    waiting = [other for other in neighbours if other["spec"].get("queueName") == queue and _waits(other)]
    order = sorted(
        waiting, key=lambda w: (-int(w["spec"].get("priority") or 0), w["metadata"].get("creationTimestamp", ""))
    )
    names = [other["metadata"]["name"] for other in order]
    name = work["metadata"]["name"]
    return (names.index(name) + 1, len(names)) if name in names else (1, len(names) or 1)


def _waits(work: Object) -> bool:
    return work["spec"].get("active", True) and not is_true(work, "QuotaReserved") and not is_true(work, "Finished")


# ---- parts ---------------------------------------------------------------------------------------


def evictions(work: Object | None) -> int:
    """How often Kueue has evicted this Workload."""
    stats = ((work or {}).get("status") or {}).get("schedulingStats") or {}
    return sum(int(eviction.get("count", 0)) for eviction in stats.get("evictions") or ())
