"""Where on the GPU cluster a training runs: typed settings from the environment.

TRIPOD_GPU_...         how the cluster is reached: steps/lib/gpu_cluster.py
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

from pydantic import Field, field_validator

from steps.lib.gpu_cluster import REACH, Reach, read


class Place(Reach):
    """The team's place on the GPU cluster."""

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


_FIELDS = REACH | {
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
    return read(Place, _FIELDS, env)
