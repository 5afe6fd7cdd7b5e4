"""Where on the GPU cluster a model is served: typed settings from the environment.

TRIPOD_GPU_...         how the cluster is reached: steps/lib/gpu_cluster.py
TRIPOD_IMAGE_SERVE     image of the pods, by digest                           (required)
TRIPOD_SERVE_DEVICE    cpu | cuda                                             (default: cpu)
TRIPOD_SERVE_NODES     labels of the nodes, `key=value` joined by commas; of them tripod.dev/side
                       is tolerated as a taint too                            (default: any node)
TRIPOD_S3_SECRET       Secret with the store's credentials, key `credentials` (default: tripod-s3)
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from steps.lib.gpu_cluster import REACH, Reach, read


class Place(Reach):
    """The team's place on the GPU cluster."""

    image: str = Field(min_length=1)
    device: Literal["cpu", "cuda"] = "cpu"
    nodes: dict[str, str] = Field(default_factory=dict)
    """Labels of the nodes that serve."""
    s3_secret: str = "tripod-s3"

    @field_validator("nodes", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        pairs = [pair.partition("=") for pair in value.split(",")]
        if not all(key and equals for key, equals, _ in pairs):
            raise ValueError("allowed are labels as key=value, joined by commas")
        return {key: label for key, _, label in pairs}


FIELDS = REACH | {
    "image": "TRIPOD_IMAGE_SERVE",
    "device": "TRIPOD_SERVE_DEVICE",
    "nodes": "TRIPOD_SERVE_NODES",
    "s3_secret": "TRIPOD_S3_SECRET",
}


def read_place(env: Mapping[str, str]) -> Place:
    """The settings in `env`.

    Raises:
        UserError: one is missing or not allowed; names the variable.
    """
    return read(Place, FIELDS, env)
