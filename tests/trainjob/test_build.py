"""The TrainJob that is submitted, the place that it goes to, the size that it has, and the runtime that runs it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.settings.load import load_site
from steps.deploy import place as serving
from steps.lib.errors import Exit, UserError, is_retryable
from steps.lib.trainjob.build import GPU, TrainSpec, train_job, train_spec
from steps.lib.trainjob.place import _FIELDS, Place, read_place
from steps.lib.trainjob.quota import Quota, choose_nodes, quota_of
from tests.trainjob.shapes import cluster_queue

ROOT = Path(__file__).parents[2]
IMAGE = "registry.internal/tripod/train@sha256:" + "0" * 64
ENV = {
    "TRIPOD_STORE": "s3://tripod/team-a",
    "TRIPOD_RUN_ID": "monday",
    "TRIPOD_GPU_KUBECONFIG": "/home/me/gpu",
    "TRIPOD_GPU_NAMESPACE": "team-a",
    "TRIPOD_GPU_QUEUE": "train",
    "TRIPOD_GPU_PRIORITY": "normal",
    "TRIPOD_GPU_NODES": "4,10,12",
    "TRIPOD_NPROC": "8",
    "TRIPOD_GRACE_S": "300",
    "TRIPOD_IMAGE_TRAIN": IMAGE,
    "TRIPOD_DEVICE": "cuda",
    "AWS_ENDPOINT_URL": "https://s3.internal",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_SHARED_CREDENTIALS_FILE": "/home/me/credentials",
    "TRIPOD_WEBHOOK_URL": "https://hook/secret",
}


def spec(**changes: str) -> TrainSpec:
    env = {name: value for name, value in (ENV | changes).items() if value}
    return train_spec(read_place(env), key="ab" * 32, run_id="monday", args=["--dataset=d"], env=env, tree="t1")


def test_the_whole_train_job() -> None:
    env = {
        "AWS_ENDPOINT_URL": "https://s3.internal",
        "AWS_SHARED_CREDENTIALS_FILE": "/var/run/tripod/s3/credentials",
        "TRIPOD_DEVICE": "cuda",
        "TRIPOD_GRACE_S": "300",
        "TRIPOD_NODES": "10",
        "TRIPOD_NPROC": "8",
        "TRIPOD_RUN_ID": "monday",
        "TRIPOD_STORE": "s3://tripod/team-a",
        "TRIPOD_TRAIN_KEY": "ab" * 32,
        "TRIPOD_TRAIN_TARGET": "process",
        "TRIPOD_TREE": "t1",
    }
    assert train_job(spec(), nodes=10, attempt=3) == {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {
            "name": "train-abababababababab-3",
            "namespace": "team-a",
            "labels": {
                "kueue.x-k8s.io/queue-name": "train",
                "kueue.x-k8s.io/priority-class": "normal",
                "tripod/train-key": "abababababababab",
                "tripod/run": "monday",
                "tripod/attempt": "3",
                "app.kubernetes.io/managed-by": "tripod",
            },
            "annotations": {"tripod/spec": spec().digest},
        },
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": "tripod-train",
            },
            "trainer": {
                "image": IMAGE,
                "command": ["python", "-m", "steps", "train"],
                "args": ["--dataset=d"],
                "env": [{"name": name, "value": value} for name, value in env.items()],
                "numNodes": 10,
                "numProcPerNode": 8,
                "resourcesPerNode": {
                    "requests": {"nvidia.com/gpu": "8", "cpu": "100m", "memory": "1Gi"},
                    "limits": {"nvidia.com/gpu": "8"},
                },
            },
        },
    }


def test_nothing_is_empty() -> None:
    """Kueue writes a TrainJob back without empty fields, and is refused: `spec.trainer` is immutable. Seen on the lab."""
    bare = spec(TRIPOD_GPU_PRIORITY="").model_copy(update={"args": ()})

    def check(value: Any, path: str) -> None:
        assert value not in ("", [], {}, None), path
        for name, part in (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        ):
            check(part, f"{path}.{name}")

    check(train_job(bare, nodes=1, attempt=1), "")


def test_no_secret_and_no_file_of_the_launcher_goes_along() -> None:
    text = str(train_job(spec(), nodes=1, attempt=1))
    assert "secret" not in text
    assert "/home/me" not in text


def test_what_makes_two_jobs_the_same() -> None:
    first = spec()
    assert first.digest == spec().digest
    assert first.digest != spec(TRIPOD_GPU_PRIORITY="low").digest
    assert first.digest != spec(TRIPOD_GPU_NODES="4").digest
    other_tree = first.model_copy(update={"env": first.env | {"TRIPOD_TREE": "t2"}})
    assert first.digest == other_tree.digest, "sources that matter are in the train-key"


def test_kubernetes_expands_nothing_in_arguments() -> None:
    dollar = spec().model_copy(update={"args": ("--model=$(HOME)",)})
    assert train_job(dollar, nodes=1, attempt=1)["spec"]["trainer"]["args"] == ["--model=$$(HOME)"]


def test_every_setting_of_a_site_reaches_the_pods_or_is_the_launchers() -> None:
    site = load_site("prod").value
    made = site.step_env("s3://tripod", nodes=(4,))
    launchers = {*_FIELDS.values(), *serving.FIELDS.values(), "TRIPOD_SERVE_TARGET"}
    place = read_place(made | {"TRIPOD_GPU_KUBECONFIG": "x"})
    pods = train_spec(place, key="ab" * 32, run_id="r", args=[], env=made, tree="t").env
    assert set(made) - launchers - set(pods) == set()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TRIPOD_GPU_NODES", "4,x", "TRIPOD_GPU_NODES: "),
        ("TRIPOD_GPU_NODES", "0", "TRIPOD_GPU_NODES: .*whole numbers from 1"),
        ("TRIPOD_GPUS_PER_NODE", "many", "TRIPOD_GPUS_PER_NODE: .*got 'many'"),
        ("TRIPOD_IMAGE_TRAIN", "", "TRIPOD_IMAGE_TRAIN: Field required"),
    ],
)
def test_settings_that_are_wrong_are_named(name: str, value: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_place({k: v for k, v in (ENV | {name: value}).items() if v})


def test_defaults_of_a_place() -> None:
    assert read_place({"TRIPOD_IMAGE_TRAIN": "x"}) == Place(image="x", sizes=(1,), gpus_per_node=8, nproc=1)


# ---- how many nodes (K01) ------------------------------------------------------------------------


def test_quota_with_what_the_cohort_lends() -> None:
    queues = [
        cluster_queue("team-a", 48),
        cluster_queue("team-b", 32),
        cluster_queue("team-c", 16, lendingLimit="4"),
        cluster_queue("alone", 96, cohort="other"),
    ]
    assert quota_of("team-a", queues) == Quota(cluster_queue="team-a", nominal=48, borrowable=36)
    assert quota_of("alone", queues).total == 96
    limited = [cluster_queue("team-a", 48, borrowingLimit="8"), *queues[1:]]
    assert quota_of("team-a", limited).total == 56


def test_queues_that_cannot_hold_gpus() -> None:
    with pytest.raises(UserError, match=r"ClusterQueue x: not on the gpu cluster; it has team-a"):
        quota_of("x", [cluster_queue("team-a", 8)])
    with pytest.raises(UserError, match=r"does not cover nvidia.com/gpu"):
        quota_of("team-a", [cluster_queue("team-a", None)])


def test_the_largest_size_that_fits() -> None:
    day = Quota(cluster_queue="q", nominal=32, borrowable=0)
    assert choose_nodes((4, 10, 12), 8, day) == 4
    assert choose_nodes((4, 10, 12), 8, Quota(cluster_queue="q", nominal=32, borrowable=48)) == 10
    assert choose_nodes((10, 4), 8, None) == 10, "the first when the quota cannot be read"
    assert choose_nodes((10, 12), 8, day, limit=96) == 10, "it fits at night"


def test_a_job_larger_than_any_quota_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"16 nodes are 128 GPUs, ClusterQueue q can give 32 at most"):
        choose_nodes((16,), 8, Quota(cluster_queue="q", nominal=32, borrowable=0))
    with pytest.raises(UserError, match=r"13 nodes are 104 GPUs, ClusterQueue q can give 96 at most"):
        choose_nodes((13,), 8, Quota(cluster_queue="q", nominal=32, borrowable=0), limit=96)
    with pytest.raises(UserError, match=r"1 nodes are 8 GPUs, ClusterQueue q can give 0"):
        choose_nodes((1,), 8, Quota(cluster_queue="q", nominal=0, borrowable=0))


# ---- the runtime that GitOps installs ------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime() -> dict[str, Any]:
    """JobSet's spec in config/clusters/gpu/base/runtime.yaml."""
    made: dict[str, Any] = yaml.safe_load((ROOT / "config/clusters/gpu/base/runtime.yaml").read_text())
    assert made["metadata"]["labels"] == {"trainer.kubeflow.org/framework": "torch"}
    return dict(made["spec"]["template"]["spec"])


def test_the_failure_policy_is_the_table_of_exit_codes(runtime: dict[str, Any]) -> None:
    rules = runtime["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    final, preempted, disrupted = rules
    assert sorted(final["onExitCodes"]["values"]) == [
        c for c in range(1, 256) if c in set(Exit) and not is_retryable(c)
    ]
    assert preempted["onExitCodes"]["values"] == [Exit.PREEMPTED]
    assert disrupted["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    assert [rule["action"] for rule in rules] == ["FailJob"] * 3
    uncounted, ends = runtime["failurePolicy"]["rules"]
    assert uncounted["action"] == "RestartJobSetAndIgnoreMaxRestarts", "first: the rules are tried in order"
    assert ends["action"] == "FailJobSet"


def test_pods_tolerate_by_themselves_what_their_flavor_tolerates(runtime: dict[str, Any]) -> None:
    """Kueue 0.17 judges a node's taints by the Workload's own tolerations: without them it evicts what runs."""
    objects = list(yaml.safe_load_all((ROOT / "config/clusters/gpu/base/topology.yaml").read_text()))
    (flavor,) = [o for o in objects if o["kind"] == "ResourceFlavor"]
    pod = runtime["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["tolerations"] == flavor["spec"]["tolerations"]


def test_pods_of_the_runtime_are_restricted(runtime: dict[str, Any]) -> None:
    pod = runtime["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "node", "Trainer sets PET_* in the container of this name"
    assert pod["restartPolicy"] == "Never", "a pod failure policy needs it"
    assert pod["serviceAccountName"] == "tripod-train"
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert {m["mountPath"] for m in container["volumeMounts"]} == {"/tmp", "/dev/shm", "/var/run/tripod/s3"}
    assert GPU not in str(pod), "a TrainJob says how many"
