"""One phase with its reason, from objects in their real shapes."""

from typing import Any

import pytest

from steps.lib.kube import Object
from steps.lib.trainjob.state import Phase, Seen, State, evictions, position, state_of
from tests.trainjob import shapes
from tests.trainjob.shapes import (
    ADMITTED,
    NOW,
    PENDING,
    PREEMPTED,
    RESERVED,
    RESUMED,
    SUSPENDED,
    condition,
    jobset,
    pod,
    queue,
    train_job,
    workload,
)


def state(**seen: Any) -> State:
    values: dict[str, Any] = {"train_job": train_job(SUSPENDED), "local_queue": queue(), "now": NOW}
    return state_of(Seen(**{**values, **seen}))


# ---- running, whatever the TrainJob says (K03) ---------------------------------------------------


@pytest.mark.parametrize("told", [RESUMED, SUSPENDED, condition("Created", True, "JobsCreationSucceeded")])
def test_pods_that_run_are_believed(told: dict[str, Any]) -> None:
    got = state(train_job=train_job(told), workload=workload(RESERVED, ADMITTED), pods=[pod(1), pod(0)])
    assert got.phase is Phase.RUNNING
    assert got.nodes == ("b300-3", "b300-4"), "by index of the pod, not in the order of the list"


def test_some_pods_run() -> None:
    got = state(workload=workload(RESERVED, ADMITTED), pods=[pod(0), pod(1, "Pending")])
    assert (got.phase, got.why) == (Phase.STARTING, "1 of 2 pods run")


def test_admitted_without_pods_yet() -> None:
    assert state(workload=workload(RESERVED, ADMITTED)).phase is Phase.ADMITTED


def test_pods_that_have_ended_before_their_controllers_noticed() -> None:
    got = state(workload=workload(RESERVED, ADMITTED), pods=[pod(0, code=0), pod(1, code=75)])
    assert (got.phase, got.why) == (Phase.ENDING, "its pods have ended, exit codes 0, 75")


def test_admitted_and_never_started() -> None:
    old = condition("Admitted", True, "Admitted", "The workload is admitted", age_s=300)
    got = state(workload=workload(RESERVED, old))
    assert got.phase is Phase.STUCK
    assert got.why.startswith("was admitted 300 s ago, but no pod was made")
    assert got.holds_gpus


# ---- the queue (K01) -----------------------------------------------------------------------------


def test_queued_with_position_and_kueues_message() -> None:
    mine = workload(PENDING, name="mine", age_s=50)
    others = [
        workload(PENDING, name="older", age_s=80),
        workload(PENDING, name="younger", age_s=20),
        workload(PENDING, name="urgent", age_s=1, priority=10000),
        workload(PENDING, name="elsewhere", age_s=99, queueName="other"),
        workload(RESERVED, ADMITTED, name="running", age_s=99),
        workload(PENDING, name="inactive", age_s=99, active=False),
        workload(RESERVED, condition("Finished", True), name="finished", age_s=99),
    ]
    got = state(workload=mine, neighbours=[*others, mine])
    assert got.phase is Phase.QUEUED
    assert got.why.startswith("3 of 4 in train: couldn't assign flavors")
    assert position(mine, []) == (1, 1)


def node(name: str, *, ready: bool = True, cordoned: bool = False, taint: str = "") -> Object:
    side = {"key": "tripod.dev/side", "value": "training", "effect": "NoSchedule"}
    taints = [side, {"key": taint, "effect": "NoSchedule"}] if taint else [side]
    return {
        "metadata": {"name": name},
        "spec": {"taints": taints, "unschedulable": cordoned},
        "status": {"conditions": [condition("Ready", ready)]},
    }


def test_queued_while_servers_are_out_names_them() -> None:
    servers = [node("s3", taint="repair"), node("s1"), node("s2", ready=False), node("s4", cordoned=True)]
    got = state(workload=workload(PENDING), nodes=servers)
    assert got.why.endswith("; servers that are out: s2 is not ready, s3 is tainted repair, s4 is cordoned")
    assert "out" not in state(workload=workload(PENDING), nodes=servers[1:2]).why.partition("; servers")[2]


def test_queued_again_after_eviction() -> None:
    got = state(workload=workload(PENDING, PREEMPTED, evicted=1))
    assert got.phase is Phase.QUEUED
    assert "after eviction (Preempted)" in got.why


def test_fresh_job_that_kueue_has_not_seen() -> None:
    assert state(train_job=train_job(age_s=5)).phase is Phase.CREATED


def test_no_workload_and_no_queue() -> None:
    got = state(local_queue=None)
    assert (got.phase, got.why) == (Phase.STUCK, "LocalQueue train is not there")


def test_no_workload_although_there_is_a_queue() -> None:
    got = state()
    assert got.phase is Phase.STUCK
    assert "does Kueue run" in got.why


@pytest.mark.parametrize("kind", ["local_queue", "cluster_queue"])
def test_closed_queue(kind: str) -> None:
    closed = queue("train", condition("Active", False, "Stopped", "ClusterQueue team-a is stopped"))
    got = state(workload=workload(PENDING), **{kind: closed})
    assert got.phase is Phase.STUCK
    assert "admits nothing: Stopped: ClusterQueue team-a is stopped" in got.why
    assert not got.holds_gpus


def test_workload_in_a_queue_that_is_gone() -> None:
    pending = condition("QuotaReserved", False, "Inadmissible", "LocalQueue train doesn't exist")
    got = state(workload=workload(pending), local_queue=None)
    assert (got.phase, got.why) == (Phase.STUCK, "LocalQueue train doesn't exist")


def test_deactivated_says_how_to_go_on() -> None:
    evicted = condition("Evicted", True, "Deactivated", "exceeded the maximum number of re-queuing retries")
    got = state(workload=workload(PENDING, evicted, active=False))
    assert got.phase is Phase.STUCK
    assert "re-queuing retries" in got.why
    assert "kubectl -n team-a patch workload trainjob-x" in got.why


# ---- evictions (K06, K07, K08) -------------------------------------------------------------------


def test_pods_save_and_leave() -> None:
    got = state(workload=workload(RESERVED, PREEMPTED), pods=[pod(0, leaving=True), pod(1, leaving=True)])
    assert got.phase is Phase.EVICTED
    assert "2 pods save and leave" in got.why


@pytest.mark.parametrize(("age_s", "phase"), [(30, Phase.EVICTED), (1800, Phase.STUCK)])
def test_evicted_but_still_holding_quota(age_s: float, phase: Phase) -> None:
    evicted = condition("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout", age_s=age_s)
    got = state(workload=workload(RESERVED, ADMITTED, evicted))
    assert got.phase is phase
    if phase is Phase.STUCK:
        assert "was evicted 30 min ago" in got.why
        assert "kubectl -n team-a delete workload trainjob-x" in got.why


def test_no_progress_over_five_evictions() -> None:
    work = workload(PENDING, PREEMPTED, evicted=5)
    assert evictions(work) == 5
    assert state(workload=work, idle_evictions=4).phase is Phase.QUEUED
    got = state(workload=work, idle_evictions=5)
    assert got.phase is Phase.STUCK
    assert got.why.startswith("no progress over 5 evictions")
    running = state(workload=workload(RESERVED, ADMITTED, evicted=5), pods=[pod(0), pod(1)], idle_evictions=5)
    assert running.phase is Phase.STUCK


@pytest.mark.parametrize(("age_s", "phase"), [(20, Phase.STARTING), (120, Phase.STUCK)])
def test_pods_that_fit_nowhere_are_named_with_what_they_ask_for(age_s: float, phase: Phase) -> None:
    unplaced = condition("PodScheduled", False, "Unschedulable", "0/12 nodes are available", age_s=age_s)
    lost = [pod(i, "Pending", conditions=(unplaced,), selector={"pool": "old"}) for i in (0, 1)]
    got = state(workload=workload(RESERVED, ADMITTED), pods=lost)
    assert got.phase is phase
    if phase is Phase.STUCK:
        assert got.why == (
            f"{shapes.NAME}-node-0-0-abcde fits on no node, it asks for pool=old: 0/12 nodes are available (and 1 more)"
        )
        assert got.holds_gpus


def test_pods_that_wait_for_their_place_are_not_stuck() -> None:
    gated = condition("PodScheduled", False, "SchedulingGated", "Scheduling is blocked", age_s=600)
    assert (
        state(workload=workload(RESERVED, ADMITTED), pods=[pod(0, "Pending", conditions=(gated,))]).phase
        is Phase.STARTING
    )


def test_image_that_cannot_be_pulled() -> None:
    waiting = ("ImagePullBackOff", 'Back-off pulling image "registry.internal/x"')
    got = state(workload=workload(RESERVED, ADMITTED), pods=[pod(0, "Pending", waiting=waiting), pod(1)])
    assert got.phase is Phase.STUCK
    assert "ImagePullBackOff" in got.why


# ---- the end -------------------------------------------------------------------------------------

FAILED = condition("Failed", True, "FailJobSet", "jobset failed due to FailJobSet failure policy action")


def test_complete() -> None:
    done = condition("Completed", True, "AllJobsCompleted", "jobset completed successfully")
    assert state(jobset=jobset(done), pods=[pod(0, code=0), pod(1, code=0)]).phase is Phase.SUCCEEDED
    assert state(train_job=train_job(condition("Complete", True))).phase is Phase.SUCCEEDED, "the JobSet's time is over"


@pytest.mark.parametrize("code", [1, 2, 3, 130])
def test_a_final_code_ends_the_job_although_its_gang_is_restarting(code: int) -> None:
    cause = pod(1, code=code, said="log\nglobal_batch: got 7\n", ended_s=9)
    echo = pod(0, code=75, said="lost contact with the other ranks", ended_s=8)
    got = state(jobset=jobset(), pods=[echo, cause])
    assert (got.phase, got.code) == (Phase.FAILED, code)
    assert got.why == f"{shapes.NAME}-node-0-1-abcde on b300-4: global_batch: got 7"


@pytest.mark.parametrize("code", [75, 76, 137, 143])
def test_codes_that_restart_the_gang_are_not_the_end(code: int) -> None:
    got = state(jobset=jobset(), workload=workload(RESERVED, ADMITTED), pods=[pod(0), pod(1, code=code)])
    assert got.phase is Phase.STARTING


def test_restarts_used_up() -> None:
    used = condition("Failed", True, "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts")
    pods = [pod(0, code=75, said="store: away", ended_s=3), pod(1, code=137, ended_s=7)]
    got = state(jobset=jobset(used), pods=pods)
    assert (got.phase, got.code) == (Phase.FAILED, 137), "the first to end is the cause"
    assert state(jobset=jobset(used)).code == 75
    assert "ReachedMaxRestarts" in state(jobset=jobset(used)).why


def test_the_job_tells_when_its_pods_are_gone() -> None:
    message = "Container node for pod team-a/x failed with exit code 3 matching FailJob rule at index 0"
    job = {"status": {"conditions": [condition("Failed", True, "PodFailurePolicy", message)]}}
    got = state(jobset=jobset(FAILED), jobs=[job])
    assert (got.phase, got.code, got.why) == (Phase.FAILED, 3, message)


def test_gone() -> None:
    assert state(train_job=None).phase is Phase.GONE
    leaving = train_job(deletionTimestamp=shapes.stamp(3))
    assert state(train_job=leaving).phase is Phase.GONE
    assert state(train_job=leaving, pods=[pod(0), pod(1)]).phase is Phase.RUNNING, "until its pods are gone"
