"""Follow one TrainJob to its end: look, tell, keep logs, notice a cancel, give up what leads nowhere."""

import dataclasses
import time
from contextlib import suppress

from steps.lib import checkpoint
from steps.lib.errors import CancelledError, Exit, TemporaryError
from steps.lib.kube import Object
from steps.lib.kube.kinds import CLUSTER_QUEUE, JOB, JOBSET, LOCAL_QUEUE, NODE, TRAINJOB, WORKLOAD
from steps.lib.trainjob import attempts, preflight
from steps.lib.trainjob.attempts import Attempt
from steps.lib.trainjob.build import QUEUE
from steps.lib.trainjob.cancel import cancel_train, is_cancelled, pods_of, stop, workload_of
from steps.lib.trainjob.logs import PodLogs
from steps.lib.trainjob.objects import living
from steps.lib.trainjob.state import SIDE, Phase, Seen, State, evictions, state_of
from steps.lib.trainjob.training import Training


def see(training: Training, job: Object) -> Seen:
    """The objects around a TrainJob as they are now."""
    cluster, namespace, name = training.cluster, job["metadata"]["namespace"], job["metadata"]["name"]
    there = cluster.get(TRAINJOB, namespace, name)
    if there is None or there["metadata"]["uid"] != job["metadata"]["uid"]:
        return Seen(train_job=None, now=time.time())
    pods = pods_of(cluster, there)
    seen = Seen(
        train_job=there,
        workload=workload_of(cluster, there),
        jobset=cluster.get(JOBSET, namespace, name),
        pods=pods,
        now=time.time(),
    )
    return seen if living(pods) else _with_queue(training, seen, namespace, name)


def _with_queue(training: Training, seen: Seen, namespace: str, name: str) -> Seen:
    """What else matters while no pod lives."""
    cluster = training.cluster
    assert seen.train_job
    queue = seen.train_job["metadata"].get("labels", {}).get(QUEUE, "")
    local = cluster.get(LOCAL_QUEUE, namespace, queue) if queue else None
    shared = (
        preflight.readable(lambda: cluster.get(CLUSTER_QUEUE, "", local["spec"]["clusterQueue"])) if local else None
    )
    return dataclasses.replace(
        seen,
        jobs=cluster.list(JOB, namespace, labels={"jobset.sigs.k8s.io/jobset-name": name}),
        local_queue=local,
        cluster_queue=shared,
        neighbours=cluster.list(WORKLOAD, namespace),
        nodes=preflight.readable(lambda: cluster.list(NODE, "", labels={SIDE: "training"})) or (),
    )


class Follower:
    """Follows the TrainJob of one attempt."""

    def __init__(self, training: Training, attempt: Attempt, job: Object):
        self.training, self.attempt, self.job = training, attempt, job
        self.name = job["metadata"]["name"]
        self.told = ""
        self.told_at = 0.0
        self.looked_for_mark = time.monotonic()
        self.stuck_since = 0.0
        self.newest_step = -1
        """Newest committed step when the evictions were last counted."""
        self.evictions_before = 0
        """Kueue's count when that step was first seen."""

    def follow(self) -> State | None:
        """To the end; None when this attempt was given up for another size.

        Raises:
            CancelledError: the run was cancelled.
            TemporaryError: cluster or store are out of reach for too long.
        """
        training = self.training
        logs = PodLogs(
            training.cluster, training.store, run_id=training.spec.run_id, folder=training.scratch, tell=training.say
        )
        try:
            while True:
                state = training.patiently(lambda: self._look(logs))
                self._tell(state)
                if state.ended:
                    return state
                self._notice_cancel()
                if state.phase is Phase.QUEUED and training.patiently(self._resized):
                    return None
                if self._is_hopeless(state):
                    return self._given_up(state)
                time.sleep(training.patience.poll_s)
        finally:
            with suppress(TemporaryError):  # the store is away: the pods' own logs are still on the cluster
                logs.close(training.patience.logs_s)

    def _look(self, logs: PodLogs) -> State:
        seen = see(self.training, self.job)
        seen = dataclasses.replace(seen, idle_evictions=self._idle_evictions(seen.workload))
        if seen.train_job is not None:
            logs.look_at(seen.pods)
        logs.copy()
        return state_of(seen)

    def _idle_evictions(self, work: Object | None) -> int:
        """Evictions since a new checkpoint was last seen, or since we began to look."""
        count = evictions(work)
        if self.newest_step < 0 or count > self.evictions_before:
            newest = max(checkpoint.committed_steps(self.training.store, self.training.base), default=0)
            if newest > self.newest_step:
                self.newest_step, self.evictions_before = newest, count
        return max(0, count - self.evictions_before)

    def _tell(self, state: State) -> None:
        """Say what has changed; what does not change, now and then while nothing runs."""
        say, text, now = self.training.say, str(state), time.monotonic()
        running = state.phase is Phase.RUNNING
        if text == self.told and (running or now - self.told_at < self.training.patience.repeat_s):
            return
        self.told, self.told_at = text, now
        say(f"gpu: {text}")
        if running:
            say(f"gpu: {rank_map(state.nodes, self.training.spec.nproc)}")
        elif state.phase is not Phase.ENDING and not state.ended:  # while it runs, node 0 tells its own
            say(f"progress phase={state.phase.lower()}")

    def _notice_cancel(self) -> None:
        training, now = self.training, time.monotonic()
        if now - self.looked_for_mark > training.patience.mark_s:
            self.looked_for_mark = now
            if training.patiently(lambda: is_cancelled(training.store, training.spec.run_id)):
                cancel(training)

    def _resized(self) -> bool:
        """Whether the queue can give this size no longer, but another: then the attempt ends for the next one."""
        training, nodes = self.training, int(self.job["spec"]["trainer"]["numNodes"])
        per_node = training.spec.gpus_per_node
        quota = preflight.find_quota(training.cluster, training.place)
        if quota is None or nodes * per_node <= quota.total:
            return False
        if all(size * per_node > quota.total for size in training.place.sizes):
            return False
        why = f"{nodes} nodes no longer fit ClusterQueue {quota.cluster_queue}, which can give {quota.total} GPUs"
        training.say(f"gpu: {why}; going on at another size")
        stop(training.cluster, self.job, grace_s=training.place.grace_s, say=training.say)
        attempts.end(training.store, training.spec.key, self.attempt.number, code=Exit.PREEMPTED, why=why)
        return True

    def _is_hopeless(self, state: State) -> bool:
        if state.phase is not Phase.STUCK or not state.holds_gpus:
            self.stuck_since = 0.0
            return False
        self.stuck_since = self.stuck_since or time.monotonic()
        return time.monotonic() - self.stuck_since > self.training.patience.stuck_s

    def _given_up(self, state: State) -> State:
        """Give the GPUs back that a job holds and cannot use."""
        training = self.training
        training.patiently(lambda: stop(training.cluster, self.job, grace_s=training.place.grace_s, say=training.say))
        held = f"{self.name} held GPUs for {training.patience.stuck_s:.0f} s without going on"
        return State(phase=Phase.FAILED, code=Exit.USER, why=f"{held}: {state.why}")


def cancel(training: Training) -> None:
    """Stop this run's GPU jobs as `runs cancel` does.

    Raises:
        CancelledError: always.
    """
    stopped = training.patiently(
        lambda: cancel_train(
            training.cluster,
            training.store,
            namespace=training.spec.namespace,
            run_id=training.spec.run_id,
            grace_s=training.place.grace_s,
            say=training.say,
        )
    )
    done = ", ".join(stopped) or "nothing was left"
    raise CancelledError(f"run {training.spec.run_id} was cancelled; stopped on the gpu cluster: {done}")


def rank_map(nodes: tuple[str, ...], nproc: int) -> str:
    """`ranks 0-7 on b300-3, 8-15 on b300-4`."""
    parts = []
    for place, node in enumerate(nodes):
        first, last = place * nproc, (place + 1) * nproc - 1
        parts.append(f"{first}-{last} on {node}" if last > first else f"{first} on {node}")
    return f"ranks {', '.join(parts)}"
