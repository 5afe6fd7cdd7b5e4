"""What is asked for -> the TrainJob that asks for it. Pure.

Account, mounts, security, grace period, failure policy and topology are the runtime's
(config/clusters/gpu/base/runtime.yaml): a team may not set them, see the cluster's admission policies.
"""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from steps.lib.digest import digest_of
from steps.lib.gpu_cluster import passed_on
from steps.lib.kube import SPEC, Object
from steps.lib.kube.kinds import CLUSTER_TRAINING_RUNTIME, TRAINJOB
from steps.lib.trainjob.place import Place

KEY, RUN, ATTEMPT = "tripod/train-key", "tripod/run", "tripod/attempt"
"""Labels of a TrainJob."""
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
GPU = "nvidia.com/gpu"
KEY_CHARS = 16
"""How much of a train-key is in names."""

_PASSED_ON = (
    "TRIPOD_STORE_WAIT_S",
    "TRIPOD_RUN_ID",
    "TRIPOD_CACHE_VERIFY",
    "TRIPOD_DEVICE",
    "TRIPOD_BACKEND",
    "TRIPOD_THREADS",
    "TRIPOD_PEAK_TFLOPS",
)
"""Of the launcher's environment, besides what reaches the store."""


class TrainSpec(BaseModel):
    """Everything that makes two TrainJobs the same, whatever their size: that follows the queue's quota."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """The whole train-key, 64 hex characters."""
    run_id: str
    args: tuple[str, ...]
    """After `python -m steps train`."""
    env: dict[str, str]
    """Of the pods, besides what the runtime and Trainer set."""
    namespace: str
    queue: str
    priority: str
    runtime: str
    image: str
    gpus_per_node: int
    nproc: int
    sizes: tuple[int, ...]

    @property
    def digest(self) -> str:
        """The value of the annotation tripod/spec. The tree does not count: what of it matters is in the key."""
        told = self.model_dump(mode="json")
        told["env"].pop("TRIPOD_TREE", None)
        return digest_of(told)


def train_spec(
    place: Place, *, key: str, run_id: str, args: Sequence[str], env: Mapping[str, str], tree: str
) -> TrainSpec:
    """The spec of this training at this place.

    Args:
        env: the launcher's environment.
        tree: digest of the sources that the pods run (steps.lib.tree).
    """
    passed = passed_on(env) | {name: env[name] for name in _PASSED_ON if env.get(name)}
    own = {
        "TRIPOD_TRAIN_TARGET": "process",
        "TRIPOD_TRAIN_KEY": key,
        "TRIPOD_TREE": tree,
        "TRIPOD_NPROC": str(place.nproc),
        "TRIPOD_GRACE_S": str(place.grace_s),
    }
    return TrainSpec(
        key=key,
        run_id=run_id,
        args=tuple(args),
        env=passed | own,
        **place.model_dump(
            include={"namespace", "queue", "priority", "runtime", "image", "gpus_per_node", "nproc", "sizes"}
        ),
    )


def job_name(key: str, attempt: int) -> str:
    """Name of the TrainJob of one attempt."""
    return f"train-{key[:KEY_CHARS]}-{attempt}"


def train_job(spec: TrainSpec, *, nodes: int, attempt: int) -> Object:
    """The TrainJob of one attempt on so many whole nodes. Numbers of nodes and processes are explicit, never `auto`.

    Nothing in it is empty: Kueue writes the object back without empty fields, and `spec.trainer` may not change.
    """
    labels = {
        QUEUE: spec.queue,
        KEY: spec.key[:KEY_CHARS],
        RUN: spec.run_id,
        ATTEMPT: str(attempt),
        "app.kubernetes.io/managed-by": "tripod",
    }
    if spec.priority:
        labels[PRIORITY] = spec.priority
    env = spec.env | {"TRIPOD_NODES": str(nodes)}
    gpus = {GPU: str(spec.gpus_per_node)}
    return {
        "apiVersion": TRAINJOB.api_version,
        "kind": TRAINJOB.kind,
        "metadata": {
            "name": job_name(spec.key, attempt),
            "namespace": spec.namespace,
            "labels": labels,
            "annotations": {SPEC: spec.digest},
        },
        "spec": {
            "runtimeRef": {
                "apiGroup": CLUSTER_TRAINING_RUNTIME.api_version.partition("/")[0],
                "kind": CLUSTER_TRAINING_RUNTIME.kind,
                "name": spec.runtime,
            },
            "trainer": {
                "image": spec.image,
                "command": ["python", "-m", "steps", "train"],
                **({"args": [_literal(arg) for arg in spec.args]} if spec.args else {}),
                "env": [{"name": name, "value": _literal(value)} for name, value in sorted(env.items())],
                "numNodes": nodes,
                "numProcPerNode": spec.nproc,
                # the GPUs take the whole node; the rest only keeps the pod from being the first that the kernel kills
                "resourcesPerNode": {"requests": gpus | {"cpu": "100m", "memory": "1Gi"}, "limits": gpus},
            },
        },
    }


def _literal(text: str) -> str:
    """Kubernetes would expand `$(NAME)` in arguments and values."""
    return text.replace("$(", "$$(")
