"""The launcher against an API server whose other side is played: exactly one TrainJob, whatever happens."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from steps.lib.errors import CancelledError, Exit, RejectedError, TemporaryError, TripodError, UserError
from steps.lib.kube import ExistsError
from steps.lib.kube.kinds import CLUSTER_TRAINING_RUNTIME, CUSTOM_RESOURCE, JOBSET, LOCAL_QUEUE, POD, TRAINJOB, WORKLOAD
from steps.lib.lease import Lease
from steps.lib.log_parts import LogReader, log_prefix
from steps.lib.store import Store
from steps.lib.trainjob import attempts, launcher
from steps.lib.trainjob.build import train_job
from steps.lib.trainjob.cancel import ask_cancel, cancel_train, is_cancelled, left_over
from steps.lib.trainjob.submit import take
from tests.kube.api import Api, Object
from tests.trainjob.conftest import KEY, RECORD, Make
from tests.trainjob.controllers import NAMESPACE, Controllers, set_quota, train_jobs
from tests.trainjob.shapes import condition

NAME = f"train-{KEY[:16]}-1"
SECOND = f"train-{KEY[:16]}-2"


def succeed(store: Store) -> Callable[[Object], list[tuple[int, str]]]:
    """Pods that leave the record."""

    def pods(job: Object) -> list[tuple[int, str]]:
        store.put(RECORD, b"{}")
        return [(0, "")] * int(job["spec"]["trainer"]["numNodes"])

    return pods


def fail(*ends: tuple[int, str]) -> Callable[[Object], list[tuple[int, str]]]:
    return lambda job: list(ends)


class Waiting:
    """Pods that run until they are told."""

    def __init__(self, store: Store):
        self.store, self.go = store, threading.Event()
        self.started = threading.Event()

    def __call__(self, job: Object) -> list[tuple[int, str]]:
        self.started.set()
        assert self.go.wait(20)
        return succeed(self.store)(job)


class Background:
    """A launcher in a thread of its own."""

    def __init__(self, training: Any):
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, args=(training,))
        self.thread.start()

    def _work(self, training: Any) -> None:
        try:
            launcher.run(training)
        except TripodError as e:
            self.error = e

    def end(self) -> BaseException | None:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.error


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_submitted_followed_and_removed_once_the_record_is_kept(api: Api, store: Store, make: Make) -> None:
    said: list[str] = []
    with Controllers(api, succeed(store)):
        launcher.run(make(said=said, TRIPOD_NPROC="8"))
    assert train_jobs(api) == [NAME]
    assert api.of(TRAINJOB) == []
    assert attempts.current(store, KEY) == attempts.Attempt(number=1, run_id="monday", nodes=2, ended=True)
    assert f"gpu: TrainJob team-a/{NAME}: 2 nodes, 16 GPUs, 16 processes, queue train" in said


def test_a_result_that_is_recorded_asks_for_nothing(api: Api, store: Store, make: Make) -> None:
    store.put(RECORD, b"{}")
    launcher.run(make())
    assert train_jobs(api) == []


def test_phases_ranks_and_node_0s_lines_are_told_and_all_logs_are_kept(api: Api, store: Store, make: Make) -> None:
    said: list[str] = []
    pods = Waiting(store)
    for number in (0, 1):
        path = POD.path(NAMESPACE, f"{NAME}-node-0-{number}-x")
        api.logs[path] = [b"progress step=1 loss=2.5", b"from %d" % number]
    with Controllers(api, pods):
        running = Background(make(said=said, TRIPOD_NPROC="8"))
        wait_until(lambda: "from 0" in said)
        wait_until(lambda: "gpu: ranks 0-7 on b300-0, 8-15 on b300-1" in said)
        pods.go.set()
        assert running.end() is None
    assert said.count("progress step=1 loss=2.5") == 1, "once, and only node 0's"
    assert "from 1" not in said
    assert "gpu: Running: 2 pods" in said
    for number in (0, 1):
        reader = LogReader(store, log_prefix("monday", f"{NAME}-node-0-{number}-x", 0))
        assert list(reader.lines(last=True)) == ["progress step=1 loss=2.5", f"from {number}"]


# ---- one TrainJob (A05) --------------------------------------------------------------------------


def test_the_reply_to_create_is_lost(api: Api, store: Store, make: Make) -> None:
    api.drop = [("POST", "trainjobs")]
    with Controllers(api, succeed(store)):
        launcher.run(make())
    assert train_jobs(api) == [NAME]


def test_the_launcher_is_ended_and_started_again(api: Api, store: Store, make: Make) -> None:
    said: list[str] = []
    pods = Waiting(store)
    take(make())
    with Controllers(api, pods):
        assert pods.started.wait(20)
        again = Background(make(said=said))
        wait_until(lambda: "gpu: Running: 2 pods" in said)
        pods.go.set()
        assert again.end() is None
    assert train_jobs(api) == [NAME]
    assert said[0].startswith(f"gpu: going on with TrainJob team-a/{NAME}, made 2")


def test_the_launcher_ends_between_attempt_and_create(api: Api, store: Store, make: Make) -> None:
    attempts.begin(store, KEY, run_id="monday", nodes=2)
    with Controllers(api, succeed(store)):
        launcher.run(make())
    assert train_jobs(api) == [NAME]


def test_two_launchers_of_one_run_at_once(api: Api, store: Store, make: Make) -> None:
    pods = Waiting(store)
    with Controllers(api, pods):
        both = [Background(make()), Background(make())]
        assert pods.started.wait(20)
        pods.go.set()
        assert [one.end() for one in both] == [None, None]
    assert train_jobs(api) == [NAME]


def test_another_spec_is_an_error(api: Api, make: Make) -> None:
    take(make())
    with pytest.raises(
        UserError, match=rf"TrainJob team-a/{NAME} of this run was made from other settings; stop it with"
    ):
        launcher.run(make(TRIPOD_GPU_PRIORITY="high"))
    assert train_jobs(api) == [NAME]


def test_a_name_that_is_taken_by_something_else(api: Api, cluster: Any, make: Make) -> None:
    attempts.begin(make().store, KEY, run_id="monday", nodes=2)
    body = train_job(make().spec, nodes=2, attempt=1)
    api.put(TRAINJOB, {"metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {}}, "spec": body["spec"]})
    with pytest.raises(ExistsError):
        cluster.create(TRAINJOB, body)
    with pytest.raises(UserError, match="already running"):
        launcher.run(make())


def test_another_runs_live_job(api: Api, store: Store, make: Make) -> None:
    pods = Waiting(store)
    take(make(run_id="monday"))
    with Controllers(api, pods):
        assert pods.started.wait(20)
        with pytest.raises(UserError, match=r"^already running: monday .*runs status monday --follow") as e:
            launcher.run(make(run_id="tuesday"))
        assert e.value.code == Exit.USER
        pods.go.set()
    assert train_jobs(api) == [NAME]


def test_another_run_that_trains_the_key_without_a_cluster(api: Api, store: Store, make: Make) -> None:
    with (
        Lease(store, f"checkpoints/{KEY[:16]}/lease.json", run_id="laptop"),
        pytest.raises(UserError, match="already running: laptop"),
    ):
        launcher.run(make())
    assert train_jobs(api) == []


def test_another_runs_job_that_failed_while_its_launcher_was_gone(api: Api, store: Store, make: Make) -> None:
    take(make(run_id="monday"))
    with Controllers(api, fail((75, "away"), (75, "away"))):
        wait_until(lambda: any(p["status"].get("phase") == "Failed" for p in api.of(POD)))
    with Controllers(api, succeed(store)):
        launcher.run(make(run_id="tuesday"))
    assert train_jobs(api) == [NAME, SECOND]
    assert api.of(TRAINJOB) == []


# ---- finished while nobody looked ----------------------------------------------------------------


def test_compute_was_down_until_after_the_job_had_ended(api: Api, store: Store, make: Make) -> None:
    take(make())
    with Controllers(api, succeed(store)):
        wait_until(lambda: store.head(RECORD) is not None)
    launcher.run(make())
    assert train_jobs(api) == [NAME]


def test_compute_was_down_while_the_job_failed(api: Api, make: Make) -> None:
    take(make())
    with Controllers(api, fail((3, "diverged"), (75, "lost contact"))):
        wait_until(lambda: any(p["status"].get("phase") == "Failed" for p in api.of(POD)))
    with pytest.raises(RejectedError, match=f"gpu: {NAME}-node-0-0-x on b300-0: diverged"):
        launcher.run(make())
    assert train_jobs(api) == [NAME]


# ---- the end -------------------------------------------------------------------------------------


def test_finished_jobs_that_nobody_came_back_for_are_swept(api: Api, store: Store, make: Make) -> None:
    labels = {
        "app.kubernetes.io/managed-by": "tripod",
        "tripod/run": "old",
        "tripod/train-key": "a" * 16,
        "tripod/attempt": "1",
    }
    for name, conditions in (
        ("shell", [condition("Complete", True)]),
        ("logs-kept", [condition("Complete", True)]),
        ("running", []),
    ):
        meta = {"name": name, "namespace": NAMESPACE, "labels": labels | {"kueue.x-k8s.io/queue-name": "train"}}
        spec = {"trainer": {"numNodes": 1}}
        api.put(TRAINJOB, {"metadata": meta, "spec": spec, "status": {"conditions": conditions}})
    for name in ("logs-kept", "running"):
        api.put(JOBSET, {"metadata": {"name": name, "namespace": NAMESPACE}})
    attempts.begin(store, "a" * 16, run_id="old", nodes=1)
    with Controllers(api, succeed(store), admit=lambda job: job["metadata"]["name"] == NAME):
        launcher.run(make())
    assert [job["metadata"]["name"] for job in api.of(TRAINJOB)] == ["logs-kept", "running"]
    ended = attempts.current(store, "a" * 16)
    assert ended is not None
    assert ended.ended


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (1, TripodError, 1),
        (2, UserError, 2),
        (3, RejectedError, 3),
        (75, TemporaryError, 75),
        (130, CancelledError, 130),
        (137, TemporaryError, 75),
    ],
)
def test_the_code_of_the_pods_is_the_launchers(
    api: Api, store: Store, make: Make, code: int, kind: type[TripodError], exit_code: int
) -> None:
    with Controllers(api, fail((code, "line\nthe reason"))), pytest.raises(kind, match="the reason") as e:
        launcher.run(make(TRIPOD_GPU_NODES="1"))
    assert e.value.code == exit_code
    kept = attempts.current(store, KEY)
    assert kept is not None
    assert (kept.ended, kept.code) == (True, code)
    assert api.of(TRAINJOB) == []


def test_a_retry_is_the_next_attempt(api: Api, store: Store, make: Make) -> None:
    with Controllers(api, fail((75, "away"), (75, "away"))), pytest.raises(TemporaryError):
        launcher.run(make())
    with Controllers(api, succeed(store)):
        launcher.run(make())
    assert train_jobs(api) == [NAME, SECOND]


def test_the_next_attempt_waits_until_the_pods_before_are_gone(api: Api, store: Store, make: Make) -> None:
    attempts.begin(store, KEY, run_id="monday", nodes=2)
    attempts.end(store, KEY, 1, code=75, why="")
    labels = {"jobset.sigs.k8s.io/jobset-name": NAME}
    left = {"metadata": {"name": "left", "namespace": NAMESPACE, "labels": labels}, "spec": {}}
    api.put(POD, left | {"status": {"phase": "Running"}})
    running = Background(make())
    time.sleep(0.3)
    assert train_jobs(api) == []
    api.remove(POD, NAMESPACE, "left")
    with Controllers(api, succeed(store)):
        assert running.end() is None
    assert train_jobs(api) == [SECOND]


def test_it_ended_well_but_left_no_record(api: Api, make: Make) -> None:
    with Controllers(api, fail((0, ""), (0, ""))), pytest.raises(TemporaryError, match="record is not in the store"):
        launcher.run(make())


def test_somebody_deletes_the_train_job(api: Api, store: Store, make: Make) -> None:
    pods = Waiting(store)
    with Controllers(api, pods):
        running = Background(make())
        assert pods.started.wait(20)
        api.remove(TRAINJOB, NAMESPACE, NAME)
        error = running.end()
        pods.go.set()
    assert isinstance(error, CancelledError)
    assert "somebody deleted the TrainJob" in str(error)


# ---- out of reach --------------------------------------------------------------------------------


def test_the_gpu_cluster_is_away_for_a_while(api: Api, store: Store, make: Make) -> None:
    said: list[str] = []
    pods = Waiting(store)
    with Controllers(api, pods):
        running = Background(make(said=said))
        wait_until(lambda: "gpu: Running: 2 pods" in said)
        api.away = True
        wait_until(lambda: any("status 503" in line for line in said))
        api.away = False
        pods.go.set()
        assert running.end() is None
    assert train_jobs(api) == [NAME]


def test_the_gpu_cluster_stays_away(api: Api, make: Make) -> None:
    from dataclasses import replace

    from tests.trainjob.conftest import FAST

    api.away = True
    with pytest.raises(TemporaryError, match="run again to go on watching the training"):
        launcher.run(make(patience=replace(FAST, away_s=0.6)))


# ---- cancel (A07) --------------------------------------------------------------------------------


def test_a_cancel_reaches_the_launcher_by_the_mark(api: Api, store: Store, make: Make) -> None:
    pods = Waiting(store)
    with Controllers(api, pods):
        running = Background(make())
        assert pods.started.wait(20)
        ask_cancel(store, "monday")
        error = running.end()
        pods.go.set()
    assert isinstance(error, CancelledError)
    assert NAME in str(error)
    assert (api.of(TRAINJOB), api.of(POD)) == ([], [])
    kept = attempts.current(store, KEY)
    assert kept is not None
    assert (kept.ended, kept.code) == (True, Exit.CANCELLED)


def test_cancel_without_a_launcher(api: Api, cluster: Any, store: Store, make: Make) -> None:
    pods = Waiting(store)
    take(make())
    with Controllers(api, pods):
        assert pods.started.wait(20)
        (left,) = left_over(cluster, NAMESPACE, "monday")
        assert (left.name, left.num_pods) == (NAME, 2)
        assert left_over(cluster, NAMESPACE, "tuesday") == []
        stopped = cancel_train(cluster, store, namespace=NAMESPACE, run_id="monday", grace_s=5)
        (work,) = api.of(WORKLOAD)
        pods.go.set()
    assert stopped == [NAME]
    assert work["spec"]["active"] is False, "evicted with grace before it is deleted"
    assert left_over(cluster, NAMESPACE) == []
    assert cancel_train(cluster, store, namespace=NAMESPACE, run_id="monday", grace_s=5) == []


def test_a_cancelled_run_submits_nothing(api: Api, store: Store, make: Make) -> None:
    ask_cancel(store, "monday")
    assert is_cancelled(store, "monday")
    with pytest.raises(CancelledError, match="nothing was left"):
        launcher.run(make())
    assert train_jobs(api) == []


# ---- size and refusals ---------------------------------------------------------------------------


def test_a_size_that_no_longer_fits_ends_for_one_that_does(api: Api, store: Store, make: Make) -> None:
    said: list[str] = []
    small = succeed(store)
    with Controllers(api, small, admit=lambda job: job["spec"]["trainer"]["numNodes"] == 4):
        running = Background(make(said=said, TRIPOD_GPU_NODES="4,10"))
        wait_until(lambda: any("Queued" in line for line in said))
        set_quota(api, 32)
        assert running.end() is None
    assert train_jobs(api) == [NAME, SECOND]
    assert "gpu: 10 nodes no longer fit ClusterQueue team-a, which can give 32 GPUs; going on at another size" in said


def test_a_size_that_fits_at_night_only_waits(api: Api, store: Store, make: Make) -> None:
    set_quota(api, 32)
    night = threading.Event()
    said: list[str] = []
    with Controllers(api, succeed(store), admit=lambda job: night.is_set()):
        running = Background(make(said=said, TRIPOD_GPU_NODES="10", TRIPOD_GPU_LIMIT="80"))
        wait_until(lambda: any("Queued: 1 of 1 in train: insufficient" in line for line in said))
        night.set()
        assert running.end() is None
    assert train_jobs(api) == [NAME]


def test_pods_that_cannot_start_give_their_gpus_back(api: Api, store: Store, make: Make) -> None:
    pods = Waiting(store)
    with Controllers(api, pods):
        running = Background(make())
        assert pods.started.wait(20)
        with api.lock:
            for pod in api.of(POD):
                waiting = {"reason": "ErrImagePull", "message": "not found"}
                pod["status"] = {
                    "phase": "Pending",
                    "containerStatuses": [{"name": "node", "state": {"waiting": waiting}}],
                }
        error = running.end()
        pods.go.set()
    assert isinstance(error, UserError)
    assert "held GPUs for 0 s without going on" in str(error)
    assert "ErrImagePull: not found" in str(error)
    assert (api.of(TRAINJOB), api.of(POD)) == ([], [])


def test_too_large_for_any_quota(api: Api, make: Make) -> None:
    with pytest.raises(UserError, match="13 nodes are 104 GPUs, ClusterQueue team-a can give 96 at most"):
        launcher.run(make(TRIPOD_GPU_NODES="13"))
    assert train_jobs(api) == []


def test_no_such_queue(api: Api, make: Make) -> None:
    with pytest.raises(UserError, match="TRIPOD_GPU_QUEUE: namespace team-a has no LocalQueue night; it has train"):
        launcher.run(make(TRIPOD_GPU_QUEUE="night"))
    with pytest.raises(UserError, match="namespace team-b has no LocalQueue train; it has none"):
        launcher.run(make(TRIPOD_GPU_NAMESPACE="team-b"))


def test_a_broken_queue_is_refused_and_a_stopped_one_waited_for(api: Api, store: Store, make: Make) -> None:
    (queue,) = api.of(LOCAL_QUEUE)
    inactive = {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "no flavor training"}
    queue["status"] = {"conditions": [inactive]}
    with pytest.raises(UserError, match="LocalQueue train admits nothing: FlavorNotFound: no flavor training"):
        launcher.run(make())
    inactive["reason"] = "Stopped"
    with Controllers(api, succeed(store)):
        launcher.run(make())


def test_a_runtime_that_kills_before_the_grace_is_over(api: Api, make: Make) -> None:
    template = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 60}}}}
    replicated = {"replicatedJobs": [{"name": "node", "template": template}]}
    api.put(
        CLUSTER_TRAINING_RUNTIME, {"metadata": {"name": "tripod-train"}, "spec": {"template": {"spec": replicated}}}
    )
    with pytest.raises(UserError, match=r"run.grace_s: got 90, but runtime tripod-train kills its pods after 60 s"):
        launcher.run(make(TRIPOD_GRACE_S="90"))


def test_no_such_runtime(api: Api, make: Make) -> None:
    with pytest.raises(UserError, match="has no ClusterTrainingRuntime other"):
        launcher.run(make(TRIPOD_GPU_RUNTIME="other"))


@pytest.mark.parametrize(("field", "trainer"), [("podTemplateOverrides", "2.1"), ("trainer", "2.0")])
def test_a_trainer_that_is_too_old_for_kueue(api: Api, make: Make, field: str, trainer: str) -> None:
    spec = {"properties": {"spec": {"properties": {field: {}}}}}
    version = {"name": "v1alpha1", "schema": {"openAPIV3Schema": spec}}
    api.put(CUSTOM_RESOURCE, {"metadata": {"name": "trainjobs.trainer.kubeflow.org"}, "spec": {"versions": [version]}})
    message = rf"no spec.runtimePatches, as in Trainer {trainer}; Kueue 0.17 .* ask for Trainer 2.2"
    with pytest.raises(UserError, match=message):
        launcher.run(make())


def test_what_may_not_be_read_is_not_checked(api: Api, store: Store, make: Make) -> None:
    set_quota(api, 0)
    api.forbidden = [
        ("GET", path) for path in ("clusterqueues", "clustertrainingruntimes", "customresourcedefinitions")
    ]
    with Controllers(api, succeed(store)):
        launcher.run(make())
    assert train_jobs(api) == [NAME]


def test_what_may_not_be_created(api: Api, make: Make) -> None:
    api.forbidden = [("POST", "trainjobs")]
    with pytest.raises(UserError, match=r"gpu cluster: POST .* is forbidden"):
        launcher.run(make())
