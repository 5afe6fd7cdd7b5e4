"""What team-a may not do on the two clusters, asked of their API servers, and that what it needs is allowed.

Everything is a server-side dry run: it passes authorization and admission, and leaves nothing.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from pipelines.build import build
from pipelines.settings.load import load
from steps.deploy.objects import ServeSpec, deployment, version_service
from steps.lib import vllm
from steps.lib.trainjob.build import train_job, train_spec
from steps.lib.trainjob.place import read_place
from tests.lab.cluster import kubectl
from tests.lab.places import COMPUTE, GPU, REGISTRY, Place
from tests.lab.processes import CommandError

pytestmark = pytest.mark.lab
Object = dict[str, Any]
Change = Callable[[Object], object]
IMAGE = f"{REGISTRY}/tripod/train@sha256:{'0' * 64}"
LAUNCHER = ["--as=compute:system:serviceaccount:team-a:tripod-workflow"]
PERSON = ["--as=somebody", "--as-group=team-a", "--as-group=system:authenticated"]
SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}


def refusal(place: Place, thing: Object, *who: str) -> str:
    """Why an object would be refused; "" when it would be taken."""
    words = ("create", "--dry-run=server", "-o", "name", "-f", "-", *who)
    try:
        kubectl(place, *words, stdin=json.dumps(thing))
    except CommandError as e:
        return str(e)
    return ""


def training() -> Object:
    """A TrainJob as the launcher makes it."""
    env = {
        "TRIPOD_GPU_SERVER": "x",
        "TRIPOD_GPU_NAMESPACE": "team-a",
        "TRIPOD_GPU_QUEUE": "real",
        "TRIPOD_IMAGE_TRAIN": IMAGE,
        "TRIPOD_STORE": "s3://team-a-store",
    }
    spec = train_spec(read_place(env), key="ab" * 32, run_id="r", args=["--dataset=x"], env=env, tree="t")
    return train_job(spec, nodes=2, attempt=1)


def workflow() -> Object:
    """The main job, as a person submits it."""
    images = [f"images.{name}={IMAGE.replace('train@', f'{name}@')}" for name in ("data", "train", "serve")]
    recipe, site = load("tiny", "lab", images)
    made: Object = yaml.safe_load(build(recipe, site, "isolation").to_yaml())
    return made


def pod(account: str) -> Object:
    """A pod, as any controller could make it."""
    container = {"name": "main", "image": IMAGE, "securityContext": SECURE}
    serves = {"priorityClassName": account} if account == "tripod-serve" else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "isolation", "namespace": "team-a"},
        "spec": {"serviceAccountName": account, "securityContext": USER, "containers": [container], **serves},
    }


SPEC = ServeSpec(
    name="m",
    model="models/m/v1",
    digest="0",
    num_bytes=1,
    settings=vllm.Settings(name="m", max_model_len=64, dtype="float32", cache_bytes=0, gpus=8).__dict__,
    replicas=1,
    namespace="team-a",
    image=IMAGE,
    nodes={"tripod.dev/side": "inference"},
    s3_secret="tripod-s3",
    env={"TRIPOD_STORE": "s3://team-a-store"},
    tree="t",
)


def serving() -> Object:
    """The Deployment that the deploy step makes."""
    return deployment(SPEC)


def served_pod() -> Object:
    """A pod of that Deployment."""
    made = serving()["spec"]["template"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": made["metadata"] | {"name": "m", "namespace": "team-a"},
        "spec": made["spec"],
    }


def changed(thing: Object, change: Change) -> Object:
    made = copy.deepcopy(thing)
    change(made)
    return made


def secret_env(name: str) -> Object:
    return {"name": "X", "valueFrom": {"secretKeyRef": {"name": name, "key": "x"}}}


def first(spec: Object) -> Object:
    """The first template of a workflow that runs a container."""
    found: Object = next(t for t in spec["templates"] if "container" in t)
    return found


def test_what_the_team_needs_is_allowed(lab: None) -> None:
    assert refusal(GPU, training(), *LAUNCHER) == ""
    assert refusal(GPU, serving(), *LAUNCHER) == ""
    assert refusal(GPU, served_pod()) == ""
    real = changed(served_pod(), lambda p: p["spec"].update(nodeSelector={"tripod.dev/lab": "real"}, tolerations=[]))
    assert refusal(GPU, real) == ""
    assert refusal(COMPUTE, workflow(), *PERSON) == ""
    assert refusal(COMPUTE, pod("tripod-workflow")) == ""


PLACED = {"name": "node", "template": {"spec": {"template": {"spec": {"nodeSelector": {"x": "y"}}}}}}
PATCH = {"manager": "team-a", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [PLACED]}}}}
FORGED = PATCH | {"manager": "kueue.x-k8s.io/manager"}
TRAININGS: dict[str, tuple[Change, str]] = {
    "another runtime": (lambda j: j["spec"]["runtimeRef"].update(name="other"), "runtimeRef: other is not one of"),
    "a runtime of its own": (lambda j: j["spec"]["runtimeRef"].update(kind="TrainingRuntime"), "runtimeRef"),
    "another queue": (
        lambda j: j["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "team-b"}),
        "label kueue.x-k8s.io/queue-name must be one of train,real",
    ),
    "no queue": (lambda j: j["metadata"]["labels"].pop("kueue.x-k8s.io/queue-name"), "queue-name must be one of"),
    "a higher priority": (
        lambda j: j["metadata"]["labels"].update({"kueue.x-k8s.io/priority-class": "high"}),
        "label kueue.x-k8s.io/priority-class must be one of low,normal",
    ),
    "an image by tag": (lambda j: j["spec"]["trainer"].update(image=f"{REGISTRY}/tripod/train:1"), "by digest"),
    "an image from elsewhere": (
        lambda j: j["spec"]["trainer"].update(image=f"docker.io/x@sha256:{'0' * 64}"),
        "trainer.image must be an image of",
    ),
    "another team's secret": (
        lambda j: j["spec"]["trainer"]["env"].append(secret_env("team-b-s3")),
        "trainer.env may take secrets from tripod-s3 only",
    ),
    "pods of its own making": (lambda j: j["spec"].update(runtimePatches=[PATCH]), "runtimePatches are not allowed"),
    "pods of its own making in Kueue's name": (
        lambda j: j["spec"].update(runtimePatches=[FORGED]),
        "kueue.x-k8s.io/manager",
    ),
    "an initializer": (
        lambda j: j["spec"].update(initializer={"dataset": {"storageUri": "s3://x"}}),
        "initializer is not allowed",
    ),
    "another team's namespace": (lambda j: j["metadata"].update(namespace="team-b"), "forbidden"),
}


def test_a_training_that_is_there_keeps_its_pods(lab: None) -> None:
    """Kueue alone places them, in its patch; a suspended TrainJob's patches could else be changed."""
    job = changed(training(), lambda j: j["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "train"}))
    job["metadata"]["name"] = "isolation"
    one = ["trainjob", "isolation", "-n", "team-a"]
    kubectl(GPU, "create", "-f", "-", *LAUNCHER, stdin=json.dumps(job))
    try:
        patch = ["patch", *one, "--type=merge", "--dry-run=server", *LAUNCHER, "-p"]
        kubectl(GPU, *patch, json.dumps({"metadata": {"annotations": {"tripod/note": "x"}}}))
        with pytest.raises(CommandError, match="runtimePatches are not allowed"):
            kubectl(GPU, *patch, json.dumps({"spec": {"runtimePatches": [FORGED]}}))
    finally:
        kubectl(GPU, "delete", *one)


@pytest.mark.parametrize("name", TRAININGS)
def test_trainings_that_are_refused(lab: None, name: str) -> None:
    change, said = TRAININGS[name]
    assert said in refusal(GPU, changed(training(), change), *LAUNCHER)


HOST = {"name": "h", "hostPath": {"path": "/"}}
OTHER_SECRET = {"name": "h", "secret": {"secretName": "team-b-s3"}}
WORKFLOWS: dict[str, tuple[Change, str]] = {
    "another account": (lambda w: w["spec"].update(serviceAccountName="default"), "serviceAccountName must be one of"),
    "no account": (lambda w: w["spec"].pop("serviceAccountName"), "serviceAccountName must be one of"),
    "a template's account": (lambda w: first(w["spec"]).update(serviceAccountName="x"), "another serviceAccountName"),
    "another team's secret": (lambda w: w["spec"]["volumes"].append(OTHER_SECRET), "may hold these secrets: tripod-s3"),
    "a template's secret": (lambda w: first(w["spec"]).update(volumes=[OTHER_SECRET]), "may hold these secrets"),
    "the host's files": (lambda w: w["spec"]["volumes"].append(HOST), "hostPath volumes are not allowed"),
    "the host's network": (lambda w: w["spec"].update(hostNetwork=True), "hostNetwork is not allowed"),
    "a patch of the pod": (lambda w: w["spec"].update(podSpecPatch="{}"), "podSpecPatch is not allowed"),
    "an image by tag": (
        lambda w: first(w["spec"])["container"].update(image=f"{REGISTRY}/tripod/data:1"),
        "images must be named by digest",
    ),
    "an image from elsewhere": (
        lambda w: first(w["spec"])["container"].update(image=f"docker.io/x@sha256:{'0' * 64}"),
        "images must be named by digest and come from",
    ),
    "another team's namespace": (lambda w: w["metadata"].update(namespace="team-b"), "forbidden"),
}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_that_are_refused(lab: None, name: str) -> None:
    change, said = WORKFLOWS[name]
    assert said in refusal(COMPUTE, changed(workflow(), change), *PERSON)


def main(thing: Object) -> Object:
    found: Object = thing["spec"]["containers"][0]
    return found


PROJECTED = {"name": "h", "projected": {"sources": [{"secret": {"name": "team-b-s3"}}]}}
PODS: dict[str, tuple[Change, str]] = {
    "another account": (lambda p: p["spec"].update(serviceAccountName="default"), "serviceAccountName must be one of"),
    "another team's secret": (lambda p: p["spec"].update(volumes=[OTHER_SECRET]), "volumes may hold these secrets"),
    "a projected secret": (lambda p: p["spec"].update(volumes=[PROJECTED]), "projected volumes may hold"),
    "a secret in a variable": (lambda p: main(p).update(env=[secret_env("team-b-s3")]), "env may take these secrets"),
    "all of a secret": (lambda p: main(p).update(envFrom=[{"secretRef": {"name": "x"}}]), "env may take these secrets"),
    "an image by tag": (lambda p: main(p).update(image=f"{REGISTRY}/x:1"), "images must be named by digest"),
    "an init container by tag": (
        lambda p: p["spec"].update(initContainers=[main(p) | {"name": "i", "image": f"{REGISTRY}/x:1"}]),
        "images must be named by digest",
    ),
    "the host's files": (lambda p: p["spec"].update(volumes=[HOST]), "hostPath"),
    "the host's network": (lambda p: p["spec"].update(hostNetwork=True), "hostNetwork"),
    "privilege": (lambda p: main(p).update(securityContext={"privileged": True}), "privileged"),
    "a node by name": (lambda p: p["spec"].update(nodeName="gpu-0"), "nodeName is not allowed"),
    "the cluster's own priority": (
        lambda p: p["spec"].update(priorityClassName="system-node-critical"),
        "priorityClassName",
    ),
    "root": (lambda p: p["spec"].update(securityContext={"runAsUser": 0}), "runAsNonRoot"),
}


@pytest.mark.parametrize("name", PODS)
@pytest.mark.parametrize("place", [COMPUTE, GPU], ids=lambda place: place.name)
def test_pods_that_are_refused_whoever_makes_them(lab: None, place: Place, name: str) -> None:
    change, said = PODS[name]
    account = "tripod-workflow" if place == COMPUTE else "tripod-serve"
    assert said in refusal(place, changed(pod(account), change))


TRAINING_SIDE = [{"key": "tripod.dev/side", "operator": "Equal", "value": "training", "effect": "NoSchedule"}]
SERVERS: dict[str, tuple[Change, str]] = {
    "the training side": (lambda p: p["spec"].update(tolerations=TRAINING_SIDE), "only the value inference is allowed"),
    "every taint": (lambda p: p["spec"].update(tolerations=[{"operator": "Exists"}]), "tolerations: of taint"),
    "the control plane": (
        lambda p: p["spec"].update(tolerations=[{"key": "node-role.kubernetes.io/control-plane"}]),
        "tolerations: of taint",
    ),
    "no class": (lambda p: p["spec"].pop("priorityClassName"), "priorityClassName must be tripod-serve"),
    "more than the team's quota": (
        lambda p: main(p)["resources"].update({kind: {"nvidia.com/gpu": "48"} for kind in ("requests", "limits")}),
        "exceeded quota: servers, requested: requests.nvidia.com/gpu=48",
    ),
    "the trainings' account": (lambda p: p["spec"].update(serviceAccountName="tripod-train"), "is for the pods of"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_servers_that_would_go_round_the_queues_are_refused(lab: None, name: str) -> None:
    change, said = SERVERS[name]
    assert said in refusal(GPU, changed(served_pod(), change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"externalIPs": ["10.88.0.1"]}, "externalIPs are not allowed"),
        ({"type": "NodePort"}, "type must be ClusterIP"),
        ({"type": "LoadBalancer"}, "type must be ClusterIP"),
        ({"type": "ExternalName", "externalName": "s3.internal"}, "type must be ClusterIP"),
    ],
)
def test_services_that_would_take_what_is_others(lab: None, change: Object, said: str) -> None:
    service = version_service(SPEC)
    assert refusal(GPU, service, *LAUNCHER) == ""
    assert said in refusal(GPU, changed(service, lambda s: s["spec"].update(change)), *LAUNCHER)


def test_a_workload_is_suspended_and_nothing_else(lab: None) -> None:
    """One that Kueue would make, so that there is one to change."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": IMAGE}]}}
    workload = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "isolation", "namespace": "team-a"},
        "spec": {"active": False, "queueName": "real", "podSets": [{"name": "m", "count": 1, "template": template}]},
    }
    team = ["-n", "team-a"]
    assert "workloads are made by Kueue" in refusal(GPU, workload, *LAUNCHER) or "forbidden" in refusal(
        GPU, workload, *LAUNCHER
    )
    kubectl(GPU, "create", "-f", "-", stdin=json.dumps(workload))
    try:
        patch = ["patch", "workload", "isolation", *team, "--type=merge", "--dry-run=server", *LAUNCHER, "-p"]
        kubectl(GPU, *patch, '{"spec": {"active": true}}')
        for spec in ({"priority": 2000000000}, {"queueName": "train"}):
            with pytest.raises(CommandError, match=r"of a workload spec\.active alone may be changed"):
                kubectl(GPU, *patch, json.dumps({"spec": spec}))
    finally:
        kubectl(GPU, "delete", "workload", "isolation", *team)


def test_a_published_step_is_neither_changed_nor_made_anew(lab: None) -> None:
    meta = {"name": "isolation", "namespace": "team-a", "labels": {"tripod/step": "ingest"}}
    template = {"apiVersion": "argoproj.io/v1alpha1", "kind": "WorkflowTemplate", "metadata": meta, "spec": {}}
    kubectl(COMPUTE, "create", "-f", "-", stdin=json.dumps(template))
    try:
        one = ["workflowtemplate", "isolation", "-n", "team-a", "--dry-run=server", *PERSON]
        for words in (
            ["patch", *one, "--type=merge", "-p", '{"spec": {"entrypoint": "x"}}'],
            ["patch", *one, "--type=merge", "-p", '{"metadata": {"labels": {"tripod/step": null}}}'],
            ["delete", *one],
        ):
            with pytest.raises(CommandError, match="a published version never changes its meaning"):
                kubectl(COMPUTE, *words)
    finally:
        kubectl(COMPUTE, "delete", "workflowtemplate", "isolation", "-n", "team-a")


@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [
        ("get", "secrets", "team-a"),
        ("create", "pods", "team-a"),
        ("create", "pods/exec", "team-a"),
        ("create", "serviceaccounts/token", "team-a"),
        ("patch", "clusterqueues.kueue.x-k8s.io", ""),
        ("patch", "nodes", ""),
        ("get", "pods", "team-b"),
        ("create", "services/proxy", "team-b"),
        ("create", "trainjobs.trainer.kubeflow.org", "team-b"),
    ],
)
def test_what_a_launcher_may_not(lab: None, verb: str, what: str, namespace: str) -> None:
    words = ["auth", "can-i", verb, what, *(["-n", namespace] if namespace else []), *LAUNCHER]
    assert kubectl(GPU, *words, check=False).strip() == "no"
