"""What the rest of the tests on clusters rests on: the lab's two clusters, its store and who trusts whom."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.lab import objects, storage
from tests.lab.cluster import kubectl
from tests.lab.conftest import get, items, submit, until
from tests.lab.places import CLUSTERS, COMPUTE, GPU, S3_ENDPOINT, Place
from tests.lab.versions import KUBERNETES

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("place", CLUSTERS, ids=lambda place: place.name)
def test_every_node_is_ready(lab: None, place: Place) -> None:
    ready = {
        node["metadata"]["name"]: node["status"]["nodeInfo"].get("kubeletVersion")
        for node in items(place, "nodes")
        if any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])
    }
    fakes = {f"b300-{n}" for n in range(1, 13)} if place == GPU else set()
    assert set(ready) == {place.node} | fakes
    assert ready[place.node] == KUBERNETES


def test_gpus(lab: None) -> None:
    gpus = {n["metadata"]["name"]: n["status"]["allocatable"].get("nvidia.com/gpu") for n in items(GPU, "nodes")}
    assert gpus.pop("gpu-0") == "32"
    assert set(gpus.values()) == {"8"}


def test_workflow_of_three_steps(probe: dict[Place, str]) -> None:
    """In a team's namespace, by its account, under its admission policies and the restricted level."""
    submit(COMPUTE, objects.chain(probe[COMPUTE]))

    def status() -> dict[str, Any]:
        found: dict[str, Any] = get(COMPUTE, "workflow", "lab-chain", "-n", "team-a").get("status", {})
        return found

    until(lambda: status().get("phase") in ("Succeeded", "Failed", "Error"), "workflow lab-chain")
    assert status()["phase"] == "Succeeded", status().get("message")
    said = {
        node["displayName"]: node["outputs"]["parameters"][0]["value"]
        for node in status()["nodes"].values()
        if node["type"] == "Pod"
    }
    assert said == {"one": "1", "two": "12", "three": "123"}
    kubectl(COMPUTE, "delete", "workflow", "lab-chain", "-n", "team-a")


def test_train_job_of_two_nodes_on_the_real_node(namespace: str) -> None:
    submit(GPU, objects.train_job("two", "lab-real", 2))
    conditions = _until_finished("two", namespace)
    pods = items(GPU, "pods", "-n", namespace, "-l", _OF.format("two"))
    nodes = {pod["spec"]["nodeName"] for pod in pods}
    logs = [kubectl(GPU, "logs", "-n", namespace, pod["metadata"]["name"]).splitlines() for pod in pods]
    assert conditions["Complete"] == "True"
    assert nodes == {GPU.node}
    assert sorted(line for log in logs for line in log if line.startswith("PET_NODE_RANK")) == [
        "PET_NODE_RANK=0",
        "PET_NODE_RANK=1",
    ]
    for log in logs:
        assert {"PET_NNODES=2", "PET_NPROC_PER_NODE=8", "PET_MASTER_ADDR=two-node-0-0.two"} <= set(log)
    kubectl(GPU, "delete", "trainjob", "two", "-n", namespace)


def test_job_of_80_gpus_is_placed_one_pod_a_server(namespace: str) -> None:
    submit(GPU, objects.train_job("eighty", "lab-fake", 10))

    def running() -> set[str]:
        pods = items(GPU, "pods", "-n", namespace, "-l", _OF.format("eighty"))
        return {pod["spec"]["nodeName"] for pod in pods if pod["status"].get("phase") == "Running"}

    until(lambda: len(running()) == 10, "10 pods of job eighty")
    (workload,) = (
        w for w in items(GPU, "workloads", "-n", namespace) if w["metadata"]["ownerReferences"][0]["name"] == "eighty"
    )
    (assigned,) = workload["status"]["admission"]["podSetAssignments"]
    assert assigned["resourceUsage"]["nvidia.com/gpu"] == "80"
    assert "topologyAssignment" in assigned
    assert running() <= {f"b300-{n}" for n in range(1, 13)}
    kubectl(GPU, "delete", "trainjob", "eighty", "-n", namespace)
    until(lambda: not items(GPU, "pods", "-n", namespace, "-l", _OF.format("eighty")), "pods of eighty gone")


_OF = "jobset.sigs.k8s.io/jobset-name={}"


def _until_finished(name: str, namespace: str) -> dict[str, str]:
    def conditions() -> dict[str, str]:
        status = get(GPU, "trainjob", name, "-n", namespace).get("status", {})
        return {c["type"]: c["status"] for c in status.get("conditions", [])}

    until(lambda: "True" in (conditions().get("Complete"), conditions().get("Failed")), f"TrainJob {name}")
    return conditions()


def test_gpu_trusts_tokens_of_compute_for_its_audience_only(lab: None) -> None:
    token = _token("--audience", "gpu-cluster")
    jobs = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs"
    assert _get(GPU, token, jobs.format("team-a")) == 200
    assert _get(GPU, token, jobs.format("team-b")) == 403
    assert _get(GPU, token, "/api/v1/namespaces/team-a/secrets") == 403
    assert _get(GPU, _token(), jobs.format("team-a")) == 401
    assert _get(COMPUTE, token, "/api") == 401


def _token(*words: str) -> str:
    return kubectl(COMPUTE, "create", "token", "tripod-workflow", "-n", "team-a", *words).strip()


def _get(place: Place, token: str, path: str) -> int:
    trusted = ssl.create_default_context(cafile=str(place.pki / "ca.crt"))
    return _status(place.server + path, token, trusted)


def _status(url: str, token: str, trusted: ssl.SSLContext) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        with e:
            return e.code


def test_argo_server_takes_tokens(lab: None, namespace: str) -> None:
    """It hands the client's token on: what may be done is compute's RBAC."""
    address = get(COMPUTE, "service", "argo-server", "-n", "argo")["spec"]["clusterIP"]
    url = f"https://{address}:2746/api/v1/workflows/{namespace}"
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE  # the server signs its certificate itself
    kubectl(COMPUTE, "create", "serviceaccount", "reader", "-n", namespace)
    token = kubectl(COMPUTE, "create", "token", "reader", "-n", namespace).strip()
    assert _status(url, "", anyone) == 401
    assert _status(url, token, anyone) == 403
    kubectl(COMPUTE, "create", "rolebinding", "reader", "-n", namespace, "--clusterrole=tripod-submitter",
            f"--serviceaccount={namespace}:reader")  # fmt: skip
    until(lambda: _status(url, token, anyone) == 200, "argo-server lets the reader in", 20)


def test_a_team_has_its_own_bucket_only(lab: None) -> None:
    mine, theirs = _s3("team-a"), _s3("team-b")
    mine.put_object(Bucket="team-a-store", Key="lab/one", Body=b"one")
    assert mine.get_object(Bucket="team-a-store", Key="lab/one")["Body"].read() == b"one"
    forbidden: list[Callable[[], object]] = [
        lambda: theirs.get_object(Bucket="team-a-store", Key="lab/one"),
        lambda: theirs.list_objects_v2(Bucket="team-a-store"),
        lambda: theirs.put_object(Bucket="team-a-store", Key="lab/one", Body=b"two"),
        lambda: theirs.delete_object(Bucket="team-a-store", Key="lab/one"),
    ]
    for call in forbidden:
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    mine.delete_object(Bucket="team-a-store", Key="lab/one")


def _s3(team: str) -> Any:
    env = storage.identity(team)
    session = boto3.Session(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], region_name=env["AWS_REGION"])
    return session.client("s3", endpoint_url=S3_ENDPOINT)


@pytest.mark.parametrize("place", CLUSTERS, ids=lambda place: place.name)
def test_pods_reach_dns_the_store_and_the_other_cluster(probe: dict[Place, str], namespace: str, place: Place) -> None:
    other = GPU if place == COMPUTE else COMPUTE
    assert (
        _run(place, probe, "resolve", "kubernetes.default.svc.cluster.local")
        == f"[{place.services.replace('0.0/16', '0.1')}]"
    )
    assert _run(place, probe, "get", S3_ENDPOINT) == "403"
    assert _run(place, probe, "get", f"http://{other.ip}:6443") == "400"  # an API server that is spoken to in the clear


def _run(place: Place, probe: dict[Place, str], *words: str) -> str:
    name = f"probe-{words[0]}"
    container = {"name": "probe", "image": probe[place], "args": list(words)}
    spec = {"restartPolicy": "Never", "containers": [container]}
    meta = {"name": name, "namespace": objects.NAMESPACE}
    submit(place, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    def phase() -> str:
        return str(get(place, "pod", name, "-n", objects.NAMESPACE)["status"]["phase"])

    until(lambda: phase() in ("Succeeded", "Failed"), f"pod {name}")
    return kubectl(place, "logs", name, "-n", objects.NAMESPACE).strip()
