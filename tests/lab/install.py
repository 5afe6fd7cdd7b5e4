"""What runs in the clusters: the controllers, the fake nodes, and config/clusters as it is shipped."""

import json
from typing import Any

import yaml

from tests.lab import images, storage
from tests.lab.cluster import kubectl
from tests.lab.places import BIN, COMPUTE, GPU, MANIFESTS, REGISTRY, ROOT, TEAMS, Place
from tests.lab.processes import start, wait_for
from tests.lab.versions import ARGO, JOBSET, KUEUE, TRAINER

Object = dict[str, Any]
NUM_FAKE_NODES, GPUS = 12, 8
REAL_GPUS = 32
"""That the one real node of gpu says it has."""
_CONTROLLERS = {
    "argo": {"workflow-controller": ("workflow-controller", ARGO[1]), "argo-server": ("argo", ARGO[1])},
    "kueue": {"kueue-controller-manager": ("kueue", KUEUE[1])},
    "jobset": {"jobset-controller-manager": ("jobset", JOBSET[1])},
    "trainer": {"kubeflow-trainer-controller-manager": ("trainer-controller-manager", TRAINER[1])},
}
_NAMESPACES = {"argo": "argo", "kueue": "kueue-system", "jobset": "jobset-system", "trainer": "kubeflow-system"}
_ENV = {"workflow-controller": {"LEADER_ELECTION_DISABLE": "true", "DEFAULT_REQUEUE_TIME": "1s"}}
KUEUE_FRAMEWORKS = ("batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob")


def compute() -> None:
    """Argo on the compute cluster."""
    executor = images.load_by_digest(COMPUTE, images.of_program("argoexec", ARGO[1]), "argoexec")
    _install(
        COMPUTE, "argo", {"workflow-controller": ["--executor-image", executor], "argo-server": ["--auth-mode=client"]}
    )


def gpu() -> None:
    """JobSet, Trainer, Kueue and the fake nodes on the gpu cluster."""
    for name in ("jobset", "trainer", "kueue"):
        _install(GPU, name, {})
    _fake_nodes()
    kubectl(GPU, "label", "node", GPU.node, "tripod.dev/lab=real", "--overwrite")
    gpus = json.dumps(
        [
            {"op": "add", "path": f"/status/{k}/nvidia.com~1gpu", "value": str(REAL_GPUS)}
            for k in ("capacity", "allocatable")
        ]
    )
    kubectl(GPU, "patch", "node", GPU.node, "--subresource=status", "--type=json", "-p", gpus)


def _install(place: Place, name: str, arguments: dict[str, list[str]]) -> None:
    namespace = _NAMESPACES[name]
    objects = [o for o in yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()) if o]
    for deployment in (o for o in objects if o["kind"] == "Deployment"):
        program, version = _CONTROLLERS[name][deployment["metadata"]["name"]]
        images.load(place, images.of_program(program, version))
        _use_image(deployment, program, version, arguments.get(deployment["metadata"]["name"], []))
    if name == "kueue":
        _configure_kueue(objects)
    kubectl(place, "apply", "-f", "-", stdin=_namespace(namespace))
    kubectl(
        place,
        "apply",
        "--server-side",
        "--force-conflicts",
        "-n",
        namespace,
        "-f",
        "-",
        stdin=yaml.safe_dump_all(objects),
    )


def _use_image(deployment: Object, program: str, version: str, arguments: list[str]) -> None:
    """Our build of the program in place of the published image."""
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    container["image"] = f"{REGISTRY}/{program}:{version}"
    container["imagePullPolicy"] = "IfNotPresent"
    container["command"] = [f"/bin/{program}"]
    container["args"] = [*container.get("args", []), *arguments]
    container.pop("resources", None)
    added = _ENV.get(deployment["metadata"]["name"], {})
    container["env"] = [*(container.get("env") or []), *({"name": k, "value": v} for k, v in added.items())]


def _configure_kueue(objects: list[Object]) -> None:
    for config in objects:
        if config["kind"] == "ConfigMap" and "controller_manager_config.yaml" in config.get("data", {}):
            settings = yaml.safe_load(config["data"]["controller_manager_config.yaml"])
            settings["integrations"]["frameworks"] = list(KUEUE_FRAMEWORKS)
            settings["leaderElection"] = {"leaderElect": False}
            config["data"]["controller_manager_config.yaml"] = yaml.safe_dump(settings)


def _fake_nodes() -> None:
    """Twelve servers of eight GPUs that KWOK plays."""
    kubectl(GPU, "apply", "-f", "-", stdin=(MANIFESTS / "kwok.yaml").read_text())
    stages = [s for s in yaml.safe_load_all((MANIFESTS / "kwok-stages.yaml").read_text()) if s]
    kept = [stage for stage in stages if stage["metadata"]["name"] != "pod-complete"]  # it would end jobs at once
    (GPU.folder / "stages.yaml").write_text(yaml.safe_dump_all(kept))
    kubectl(GPU, "apply", "-f", "-", stdin=yaml.safe_dump_all(fake_node(n) for n in range(1, NUM_FAKE_NODES + 1)))
    start(
        GPU.folder,
        "kwok",
        [
            BIN / "kwok", f"--kubeconfig={GPU.kubeconfig}", f"--config={GPU.folder}/stages.yaml",
            "--manage-all-nodes=false", "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
        ],
        netns=GPU.name,
    )  # fmt: skip


def fake_node(number: int) -> Object:
    """One fake server: four racks of three in two blocks, all on the training side."""
    name = f"b300-{number}"
    rack = (number - 1) // 3
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "type": "kwok",
        "tripod.dev/side": "training",
        "tripod.dev/block": f"block-{rack // 2 + 1}",
        "tripod.dev/rack": f"rack-{rack + 1}",
    }
    resources = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"taints": [{"key": "tripod.dev/side", "value": "training", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    }


def wait_for_controllers(place: Place) -> None:
    """Until every Deployment is available."""

    def waiting() -> list[str]:
        found = json.loads(kubectl(place, "get", "deployments", "-A", "-o", "json", check=False) or '{"items": []}')
        return [d["metadata"]["name"] for d in found["items"] if not d["status"].get("availableReplicas")]

    wait_for(lambda: not waiting(), f"{place.name}: controllers", 180)


def site() -> None:
    """config/clusters, and what the platform gives each team: the store's credentials, gpu's address and CA."""
    for place in (COMPUTE, GPU):
        folder = ROOT / "config/clusters" / place.name / "lab"
        shipped = kubectl(place, "kustomize", str(folder))
        wait_for(
            lambda p=place, y=shipped: _apply(p, y), f"{place.name}: config/clusters/{place.name}/lab", 90, every_s=3
        )  # type: ignore[misc]
    for team in TEAMS:
        secret = {"credentials": storage.credentials_file(team)}
        for place in (COMPUTE, GPU):
            _put(place, "Secret", team, "tripod-s3", stringData=secret)
        _put(COMPUTE, "ConfigMap", team, "tripod-gpu-ca", data={"ca.crt": (GPU.pki / "ca.crt").read_text()})


def _apply(place: Place, text: str) -> bool:
    """A webhook answers only a moment after its controller is available."""
    kubectl(place, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    return True


def _put(place: Place, kind: str, namespace: str, name: str, **content: dict[str, str]) -> None:
    body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, **content}
    kubectl(place, "apply", "-f", "-", stdin=json.dumps(body))


def _namespace(name: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
