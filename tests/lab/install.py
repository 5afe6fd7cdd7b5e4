"""What runs in the clusters: the controllers, and config/clusters as it is shipped."""

import hashlib
import json
from typing import Any

import yaml

from tests.lab import images, storage
from tests.lab.cluster import kubectl
from tests.lab.places import CLUSTERS, COMPUTE, GPU, MANIFESTS, REGISTRY, ROOT, TEAMS, Place
from tests.lab.processes import CommandError, wait_for
from tests.lab.versions import ARGO, JOBSET, KUEUE, TRAINER

Object = dict[str, Any]
REAL_GPUS = 32
"""That the one real node of gpu says it has."""
CONTROLLERS = {
    "argo": {"workflow-controller": ("workflow-controller", ARGO[1]), "argo-server": ("argo", ARGO[1])},
    "kueue": {"kueue-controller-manager": ("kueue", KUEUE[1])},
    "jobset": {"jobset-controller-manager": ("jobset", JOBSET[1])},
    "trainer": {"kubeflow-trainer-controller-manager": ("trainer-controller-manager", TRAINER[1])},
}
"""Deployment -> program and version, for each set of manifests."""
_NAMESPACES = {"argo": "argo", "kueue": "kueue-system", "jobset": "jobset-system", "trainer": "kubeflow-system"}
_ENV = {"workflow-controller": {"LEADER_ELECTION_DISABLE": "true", "DEFAULT_REQUEUE_TIME": "1s"}}
KUEUE_FRAMEWORKS = ("batch/job", "jobset.x-k8s.io/jobset", "trainer.kubeflow.org/trainjob")
_NOT_YET = ("failed calling webhook", "no endpoints available", "connection refused", "no matches for kind")
"""What kubectl says while a controller is about to answer."""


def compute() -> None:
    """Argo on the compute cluster."""
    executor = images.load_by_digest(COMPUTE, images.of_program("argoexec", ARGO[1]), "argoexec")
    _install(
        COMPUTE, "argo", {"workflow-controller": ["--executor-image", executor], "argo-server": ["--auth-mode=client"]}
    )


def gpu() -> None:
    """JobSet, Trainer and Kueue on the gpu cluster, and GPUs for its real node."""
    for name in ("jobset", "trainer", "kueue"):
        _install(GPU, name, {})
    labels = ("tripod.dev/lab=real", "tripod.dev/block=real", "tripod.dev/rack=real")  # levels of the flavor's topology
    kubectl(GPU, "label", "node", GPU.node, *labels, "--overwrite")
    gpus = [
        {"op": "add", "path": f"/status/{where}/nvidia.com~1gpu", "value": str(REAL_GPUS)}
        for where in ("capacity", "allocatable")
    ]
    kubectl(GPU, "patch", "node", GPU.node, "--subresource=status", "--type=json", "-p", json.dumps(gpus))


def _install(place: Place, name: str, arguments: dict[str, list[str]]) -> None:
    namespace = _NAMESPACES[name]
    objects = [o for o in yaml.load_all((MANIFESTS / f"{name}.yaml").read_text(), yaml.CSafeLoader) if o]
    for deployment in (o for o in objects if o["kind"] == "Deployment"):
        program, version = CONTROLLERS[name][deployment["metadata"]["name"]]
        images.load(place, images.of_program(program, version))
        _use_image(deployment, program, version, arguments.get(deployment["metadata"]["name"], []))
    if name == "kueue":
        _configure_kueue(objects)
    define(place, name)
    apply(place, f"{name}-namespace", json.dumps(_namespace(namespace)))
    apply(place, name, yaml.dump_all(objects, Dumper=yaml.CSafeDumper))


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


def wait_for_controllers(place: Place) -> None:
    """Until every Deployment is available."""

    def waiting() -> list[str]:
        found = json.loads(kubectl(place, "get", "deployments", "-A", "-o", "json", check=False) or '{"items": []}')
        return [d["metadata"]["name"] for d in found["items"] if not d["status"].get("availableReplicas")]

    wait_for(lambda: not waiting(), f"{place.name}: controllers", 180)


def site() -> None:
    """config/clusters, and what the platform gives each team: the store's credentials, gpu's address and CA."""
    for place in CLUSTERS:
        shipped = kubectl(place, "kustomize", str(ROOT / "config/clusters" / place.name / "lab"))
        apply(place, "site", shipped)
    for team in TEAMS:
        for place in CLUSTERS:
            secret = _object("Secret", team, "tripod-s3", stringData={"credentials": storage.credentials_file(team)})
            apply(place, f"{team}-s3", json.dumps(secret))
        ca = {"ca.crt": (GPU.pki / "ca.crt").read_text()}
        apply(COMPUTE, f"{team}-gpu-ca", json.dumps(_object("ConfigMap", team, "tripod-gpu-ca", data=ca)))


def define(place: Place, name: str) -> None:
    """The CRDs of a set of manifests. Created, not applied: for Argo's that is minutes less."""
    text = (MANIFESTS / f"{name}-crds.yaml").read_text()
    if _is_applied(place, f"{name}-crds", text):
        return
    try:
        kubectl(place, "create", "-f", "-", stdin=text)
    except CommandError as e:
        if "AlreadyExists" not in str(e):
            raise
        kubectl(place, "replace", "-f", "-", stdin=text)
    _note(place, f"{name}-crds", text)


def apply(place: Place, name: str, text: str) -> None:
    """Server-side apply, repeated while a webhook is not there yet. The same text is applied only once in the cluster's
    life, so that `up` takes nothing back from what other field managers own since.

    Args:
        name: of this set of objects, and of its field manager.
    """
    if _is_applied(place, name, text):
        return

    def applied() -> bool:
        options = ("--server-side", "--force-conflicts", f"--field-manager=lab-{name}")
        try:
            kubectl(place, "apply", *options, "-f", "-", stdin=text)
        except CommandError as e:
            if any(message in str(e) for message in _NOT_YET):
                return False
            raise
        return True

    wait_for(applied, f"{place.name}: {name}", every_s=2)
    _note(place, name, text)


def _is_applied(place: Place, name: str, text: str) -> bool:
    marker = place.folder / "applied" / name
    return marker.exists() and marker.read_text() == hashlib.sha256(text.encode()).hexdigest()


def _note(place: Place, name: str, text: str) -> None:
    marker = place.folder / "applied" / name
    marker.parent.mkdir(exist_ok=True)
    marker.write_text(hashlib.sha256(text.encode()).hexdigest())


def _object(kind: str, namespace: str, name: str, **content: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, **content}


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
