"""steps.deploy on a double of the GPU cluster: what is made, adopted, swapped and removed, and why it fails."""

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.deploy import main as deploy_command
from steps import deploy
from steps.deploy import cluster as on_cluster, kept, objects
from steps.lib import tree
from steps.lib.completions import Client
from steps.lib.digest import sha256_hex
from steps.lib.errors import RejectedError, TemporaryError, UserError
from steps.lib.kube.kinds import DEPLOYMENT, SERVICE
from steps.lib.lease import Lease
from steps.lib.store import Store
from tests.after.serving import params, publish_model
from tests.after.serving_cluster import NAMESPACE, ServingCluster
from tests.kube.api import Api, serving
from tests.steps.calling import context

SITE = """
engine = "local"
[store]
uri = "{store}"
[inference]
target = "kubernetes"
nodes = {{ "tripod.dev/side" = "inference" }}
[gpu]
namespace = "team-a"
kubeconfig = "{kubeconfig}"
[images]
serve = "registry.internal/tripod/serve@sha256:0"
"""


class Place:
    """A team's place on the cluster, and what was said."""

    def __init__(self, store: Store, api: Api, cluster: ServingCluster, kubeconfig: Path):
        self.store, self.api, self.cluster, self.kubeconfig = store, api, cluster, kubeconfig
        self.said: list[str] = []
        self.env = {
            "TRIPOD_STORE": store.uri,
            "TRIPOD_SERVE_TARGET": "kubernetes",
            "TRIPOD_SERVE_NODES": "tripod.dev/side=inference",
            "TRIPOD_GPU_KUBECONFIG": str(kubeconfig),
            "TRIPOD_GPU_NAMESPACE": NAMESPACE,
            "TRIPOD_IMAGE_SERVE": "registry.internal/tripod/serve@sha256:0",
        }

    def deploy(self, model: str, **changes: object) -> deploy.Result:
        return deploy.run(params(model, **changes), context(self.store, env=self.env, say=self.said.append))


@pytest.fixture
def place(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setattr(on_cluster, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr("steps.lib.gpu_cluster._RETRY_S", 0.3)
    api = Api()
    with serving(api, tmp_path) as kubeconfig, ServingCluster(api) as cluster:
        yield Place(store, api, cluster, kubeconfig)


def nothing_is_there(place: Place) -> bool:
    return not place.api.of(DEPLOYMENT) and not place.api.of(SERVICE)


def test_without_keep_it_answers_once_and_nothing_stays(place):
    result = place.deploy(publish_model(place.store))
    assert (result.endpoint, result.completion, result.adopted) == ("", " after 'def '", False)
    assert nothing_is_there(place)
    place.deploy(publish_model(place.store))
    assert place.cluster.starts == 1
    assert "nothing to start" in place.said[-1]


def test_a_kept_server_is_what_its_service_points_at_and_is_adopted(place):
    model = publish_model(place.store)
    kept = place.deploy(model, keep=True)
    assert kept.endpoint == "http://serve-m.team-a.svc:8000/v1"
    [service] = place.cluster.users
    [deployment] = place.api.of(DEPLOYMENT)
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    for keep in (True, False):
        again = place.deploy(model, keep=keep)
        assert (again.endpoint, again.adopted, again.completion) == (kept.endpoint, True, kept.completion)
    assert place.cluster.starts == 1


def test_the_old_version_serves_until_the_new_one_has_passed(place):
    place.deploy(publish_model(place.store, "v1"), keep=True)
    seen = []
    place.cluster.asked = lambda: seen.append(
        (place.cluster.users[0]["metadata"]["annotations"]["tripod/model"], place.cluster.models())
    )
    result = place.deploy(publish_model(place.store, "v2"), keep=True)
    assert seen[0] == ("models/m/v1", ["models/m/v1", "models/m/v2"]) or seen[0] == (
        "models/m/v1",
        ["models/m/v2", "models/m/v1"],
    )
    assert place.cluster.models() == ["models/m/v2"]
    [service] = place.cluster.users
    assert service["metadata"]["annotations"]["tripod/model"] == "models/m/v2"
    assert service["spec"]["selector"] == place.api.of(DEPLOYMENT)[0]["spec"]["selector"]["matchLabels"]
    assert result.endpoint == "http://serve-m.team-a.svc:8000/v1"


@pytest.mark.parametrize("mode", ["empty", "deaf", "refuses"])
def test_a_new_version_that_fails_leaves_the_old_one(place, mode):
    place.deploy(publish_model(place.store, "v1"), keep=True)
    place.cluster.mode = mode
    with pytest.raises(RejectedError):
        place.deploy(publish_model(place.store, "v2"), keep=True)
    assert place.cluster.models() == ["models/m/v1"]
    assert len(place.api.of(SERVICE)) == 2


@pytest.mark.parametrize(
    ("container", "code", "lines", "error", "said"),
    [
        ("vllm", 1, [b"ValueError: no such kernel"], UserError, "vLLM ended with code 1 before it was healthy: Value"),
        ("vllm", 137, [b"INFO loading"], TemporaryError, "vLLM was ended by signal 9"),
        ("fetch", 2, [b"noise", b"error: models/m/v1: no such model"], UserError, "ended with code 2: models/m/v1: no"),
    ],
)
def test_a_container_that_ends_says_why_and_is_removed(place, container, code, lines, error, said):
    place.cluster.ends = {container: (code, lines)}
    with pytest.raises(error, match=said):
        place.deploy(publish_model(place.store), keep=True)
    assert nothing_is_there(place)


def test_a_pod_that_fits_nowhere_says_so_and_is_removed(place, monkeypatch):
    place.cluster.stuck = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."
    monkeypatch.setattr(on_cluster, "_PLACING_S", 0.1)
    monkeypatch.setattr("steps.lib.vllm._START_S", 0.1)
    with pytest.raises(TemporaryError, match="is ready: not within 0 s; last seen: Unschedulable: 0/12 nodes"):
        place.deploy(publish_model(place.store), keep=True)
    assert nothing_is_there(place)


def test_pods_that_the_cluster_refuses_are_not_waited_for(place):
    place.cluster.refused = 'pods "x" is forbidden: policy says no'
    with pytest.raises(UserError, match=r"Deployment serve-m-.*forbidden: policy says no"):
        place.deploy(publish_model(place.store), keep=True)
    assert nothing_is_there(place)


def test_a_call_that_was_ended_is_taken_up(place, monkeypatch):
    model = publish_model(place.store)
    place.cluster.stuck = "not yet"

    def killed(*_: object) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(on_cluster._Waiting, "wait", killed)
        with pytest.raises(KeyboardInterrupt):
            place.deploy(model, keep=True)
    [deployment] = place.api.of(DEPLOYMENT)
    place.cluster.stuck = ""
    with place.api.lock:
        deployment["status"] = {}
    place.deploy(model, keep=True)
    assert [d["metadata"]["uid"] for d in place.api.of(DEPLOYMENT)] == [deployment["metadata"]["uid"]]


def test_what_ended_calls_have_left_is_removed(place, monkeypatch):
    """Killed between the swap and the end of the old version; and with a version that nobody asks for any more."""
    place.deploy(publish_model(place.store, "v1"), keep=True)
    second = publish_model(place.store, "v2")
    with monkeypatch.context() as patch:
        patch.setattr(on_cluster, "_swap", _killed)
        with pytest.raises(KeyboardInterrupt):
            place.deploy(second, keep=True)
    assert sorted(place.cluster.models()) == ["models/m/v1", "models/m/v2"]
    again = place.deploy("models/m/v1", keep=True)
    assert again.adopted
    assert place.cluster.models() == ["models/m/v1"]
    assert len(place.api.of(SERVICE)) == 2


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_who_has_lost_the_lease_changes_nothing(place, monkeypatch):
    """Cut off from the store, it was taken for dead; what it made is somebody else's by now."""
    place.deploy(publish_model(place.store, "v1"), keep=True)
    losing = publish_model(place.store, "v2")

    def lost(self: object) -> None:
        raise TemporaryError("somebody else holds the lease")

    place.cluster.asked = lambda: monkeypatch.setattr(Lease, "check", lost)
    with pytest.raises(TemporaryError, match="somebody else holds the lease"):
        place.deploy(losing, keep=True)
    [service] = place.cluster.users
    assert service["metadata"]["annotations"]["tripod/model"] == "models/m/v1"
    assert sorted(place.cluster.models()) == ["models/m/v1", "models/m/v2"]


def test_a_service_that_does_not_answer_points_back(place, monkeypatch):
    place.deploy(publish_model(place.store, "v1"), keep=True, port=9000)
    before = copy.deepcopy(place.cluster.users[0])
    real = on_cluster._client

    def broken(cluster: object, spec: object, service: str, port: int) -> Client:
        client = real(cluster, spec, service, port)
        if service == "serve-m":
            client.models = lambda: []  # type: ignore[method-assign]
        return client

    monkeypatch.setattr(on_cluster, "_client", broken)
    with pytest.raises(RejectedError, match="service serve-m serves , not m"):
        place.deploy(publish_model(place.store, "v2"), keep=True)
    [now] = place.cluster.users
    assert (now["spec"], now["metadata"]["annotations"]) == (before["spec"], before["metadata"]["annotations"])
    assert place.cluster.models() == ["models/m/v1"]


def test_the_port_stays_and_the_number_of_replicas_is_no_other_version(place):
    model = publish_model(place.store)
    first = place.deploy(model, keep=True, port=9000)
    [deployment] = place.api.of(DEPLOYMENT)
    deployment["spec"]["replicas"] = 0  # somebody has scaled it
    again = place.deploy(model, keep=True, replicas=2)
    assert (again.endpoint, again.adopted) == (first.endpoint, True)
    assert [d["spec"]["replicas"] for d in place.api.of(DEPLOYMENT)] == [2]
    assert place.deploy(publish_model(place.store, "v2"), keep=True).endpoint == "http://serve-m.team-a.svc:9000/v1"


def test_a_copy_that_the_kubelet_tries_again_is_waited_for(place, monkeypatch):
    place.cluster.ends = {"fetch": (75, [b"error: the store is away"])}
    monkeypatch.setattr(on_cluster, "_PLACING_S", 0.3)
    monkeypatch.setattr("steps.lib.vllm._START_S", 0.1)
    with pytest.raises(TemporaryError, match="is ready: not within 0 s"):
        place.deploy(publish_model(place.store), keep=True)


def test_what_a_pod_gets(place):
    place.env |= {"TRIPOD_SERVE_DEVICE": "cuda", "AWS_REGION": "us-east-1", "AWS_SECRET_ACCESS_KEY": "hunter2"}
    place.deploy(publish_model(place.store), keep=True, gpus=2, replicas=3)
    [deployment] = place.api.of(DEPLOYMENT)
    assert deployment["spec"]["replicas"] == 3
    pod = deployment["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"tripod.dev/side": "inference"}
    assert pod["tolerations"] == [
        {"key": "tripod.dev/side", "operator": "Equal", "value": "inference", "effect": "NoSchedule"}
    ]
    [fetch], [vllm] = pod["initContainers"], pod["containers"]
    assert fetch["args"] == ["--ref=models/m/v1", "--to=/model"]
    assert {e["name"]: e["value"] for e in fetch["env"]} == {
        "TRIPOD_STORE": place.store.uri,
        "AWS_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": "/var/run/tripod/s3/credentials",
        "TRIPOD_TREE": sha256_hex(tree.pack(tree.root())),
    }
    assert vllm["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    assert vllm["args"][vllm["args"].index("--tensor-parallel-size") + 1] == "2"
    assert "s3" not in [mount["name"] for mount in vllm["volumeMounts"]], "a server needs no credentials"
    assert not [e for e in vllm["env"] if e["name"].startswith(("AWS_", "TRIPOD_"))]
    assert "hunter2" not in str(deployment)


def test_gpus_must_divide_the_heads(place):
    place.env["TRIPOD_SERVE_DEVICE"] = "cuda"
    with pytest.raises(UserError, match=r"serving.gpus: got 8, models/m/v1 has 2 attention heads"):
        place.deploy(publish_model(place.store), gpus=8)


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("m", "serve-m"),
        ("Org/Model_v2.1", "serve-org-model-v2-1-"),
        ("x" * 100, f"serve-{'x' * 34}-"),
        ("é", "serve-"),
    ],
)
def test_names_of_services(name, service):
    made = objects.service_name(name)
    assert made.startswith(service)
    assert len(f"{made}-{'0' * 10}") <= 63
    assert made.rstrip("-") == made
    assert objects.service_name(name + "!") != made


def test_the_command_runs_shows_and_stops(place, tmp_path, capsys):
    site = tmp_path / "mine.toml"
    site.write_text(SITE.format(store=place.store.uri, kubeconfig=place.kubeconfig))
    assert deploy_command(["status", "--site", str(site)]) == 0
    assert "nothing serves in namespace team-a of the gpu cluster" in capsys.readouterr().out
    place.deploy(publish_model(place.store), keep=True)
    assert deploy_command(["status", "--site", str(site)]) == 0
    out = capsys.readouterr().out
    assert "m  http://serve-m.team-a.svc:8000/v1  1 of 1 ready\n  model   models/m/v1  digest 7631" in out
    assert time.strftime("%Y-%m-%d") in out
    assert deploy_command(["stop", "n", "--site", str(site)]) == 2
    assert "NAME: got 'n', which does not serve in namespace team-a" in capsys.readouterr().err
    with Lease(place.store, kept.lease_key(NAMESPACE, "m"), run_id="monday"):
        assert deploy_command(["stop", "m", "--site", str(site)]) == 2
        assert "already running: monday" in capsys.readouterr().err
    place.api.remove(DEPLOYMENT, NAMESPACE, place.api.of(DEPLOYMENT)[0]["metadata"]["name"])
    assert deploy_command(["stop", "m", "--site", str(site)]) == 0, "what is left of it goes"
    assert nothing_is_there(place)
