"""Where on the GPU cluster a training runs: typed settings from the environment.

TRIPOD_GPU_KUBECONFIG  a kubeconfig, for people and tests; or
TRIPOD_GPU_SERVER, TRIPOD_GPU_CA, TRIPOD_GPU_TOKEN   the API server, its CA, a projected token that it trusts
TRIPOD_GPU_CONTEXT     of the kubeconfig                                  (default: its current one)
TRIPOD_GPU_NAMESPACE   the team's namespace                               (default: default)
TRIPOD_GPU_QUEUE       LocalQueue there                                   (default: default)
TRIPOD_GPU_PRIORITY    WorkloadPriorityClass                              (default: the cluster's default)
TRIPOD_GPU_RUNTIME     ClusterTrainingRuntime                             (default: tripod-train)
TRIPOD_GPUS_PER_NODE   nodes go whole: what one pod asks for              (default: 8)
TRIPOD_GPU_NODES       numbers of nodes that the recipe may run at, `4,10,12`  (default: 1)
TRIPOD_GPU_LIMIT       GPUs of the largest capacity profile               (default: what the queue has now)
TRIPOD_IMAGE_TRAIN     image of the pods, by digest                       (required)
TRIPOD_NPROC           processes a node                                   (default: 1)
TRIPOD_GRACE_S         seconds from being told to stop to being killed    (default: 30)
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from steps.lib.errors import UserError
from steps.lib.kube import Cluster, open_cluster

_RETRY_S = 20.0
"""For one call; the launcher goes on much longer when the API server is away."""


class Place(BaseModel):
    """The team's place on the GPU cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: str = ""
    context: str = ""
    server: str = ""
    ca_file: str = ""
    token_file: str = ""
    namespace: str = "default"
    queue: str = "default"
    priority: str = ""
    runtime: str = "tripod-train"
    gpus_per_node: int = Field(8, ge=1)
    sizes: tuple[int, ...] = (1,)
    """Numbers of nodes that the training may run at, as the recipe names them."""
    limit: int = Field(0, ge=0)
    """GPUs of the largest capacity profile; 0: what the queue can give now."""
    image: str = Field(min_length=1)
    nproc: int = Field(1, ge=1)
    """Processes a node."""
    grace_s: int = Field(30, ge=1)

    @field_validator("sizes", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @field_validator("sizes")
    @classmethod
    def _from_one(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError("allowed are whole numbers from 1, joined by commas")
        return value


_FIELDS = {
    "kubeconfig": "TRIPOD_GPU_KUBECONFIG",
    "context": "TRIPOD_GPU_CONTEXT",
    "server": "TRIPOD_GPU_SERVER",
    "ca_file": "TRIPOD_GPU_CA",
    "token_file": "TRIPOD_GPU_TOKEN",
    "namespace": "TRIPOD_GPU_NAMESPACE",
    "queue": "TRIPOD_GPU_QUEUE",
    "priority": "TRIPOD_GPU_PRIORITY",
    "runtime": "TRIPOD_GPU_RUNTIME",
    "gpus_per_node": "TRIPOD_GPUS_PER_NODE",
    "sizes": "TRIPOD_GPU_NODES",
    "limit": "TRIPOD_GPU_LIMIT",
    "image": "TRIPOD_IMAGE_TRAIN",
    "nproc": "TRIPOD_NPROC",
    "grace_s": "TRIPOD_GRACE_S",
}


def read_place(env: Mapping[str, str]) -> Place:
    """The settings in `env`.

    Raises:
        UserError: one is missing or not allowed; names the variable.
    """
    try:
        return Place.model_validate({field: env[name] for field, name in _FIELDS.items() if env.get(name)})
    except ValidationError as e:
        problem = e.errors()[0]
        got = "" if problem["type"] == "missing" else f", got {problem['input']!r}"
        raise UserError(f"{_FIELDS[str(problem['loc'][0])]}: {problem['msg']}{got}") from e


def open_place(place: Place) -> Cluster:
    """The GPU cluster's API server, by kubeconfig or by projected token.

    Raises:
        UserError: neither is set, or its file is not there.
    """
    if not place.kubeconfig and not place.server:
        raise UserError(
            "TRIPOD_GPU_SERVER: not set; set it with TRIPOD_GPU_CA and TRIPOD_GPU_TOKEN, or TRIPOD_GPU_KUBECONFIG"
        )
    if place.kubeconfig:
        return open_cluster("gpu", kubeconfig=place.kubeconfig, context=place.context, retry_s=_RETRY_S)
    return open_cluster(
        "gpu", server=place.server, ca_file=place.ca_file, token_file=place.token_file, retry_s=_RETRY_S
    )
