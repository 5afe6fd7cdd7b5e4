"""How a step's process reaches the GPU cluster, and how its settings there are read from the environment.

TRIPOD_GPU_KUBECONFIG  a kubeconfig, for people and tests; or
TRIPOD_GPU_SERVER, TRIPOD_GPU_CA, TRIPOD_GPU_TOKEN   the API server, its CA, a projected token that it trusts
TRIPOD_GPU_CONTEXT     of the kubeconfig                                  (default: its current one)
TRIPOD_GPU_NAMESPACE   the team's namespace                               (default: default)
"""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib.errors import UserError
from steps.lib.kube import Cluster, open_cluster

CREDENTIALS = "/var/run/tripod/s3/credentials"
"""Where pods there have the team's Secret with the store's credentials."""
_RETRY_S = 20.0
"""For one call; who waits for something goes on much longer when the API server is away."""


class Reach(BaseModel):
    """The team's namespace on the GPU cluster, and the way to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kubeconfig: str = ""
    context: str = ""
    server: str = ""
    ca_file: str = ""
    token_file: str = ""
    namespace: str = "default"


R = TypeVar("R", bound=Reach)
REACH = {
    "kubeconfig": "TRIPOD_GPU_KUBECONFIG",
    "context": "TRIPOD_GPU_CONTEXT",
    "server": "TRIPOD_GPU_SERVER",
    "ca_file": "TRIPOD_GPU_CA",
    "token_file": "TRIPOD_GPU_TOKEN",
    "namespace": "TRIPOD_GPU_NAMESPACE",
}
"""Field -> variable."""


def read(settings: type[R], variables: Mapping[str, str], env: Mapping[str, str]) -> R:
    """The settings in `env`.

    Args:
        variables: field -> variable.

    Raises:
        UserError: one is missing or not allowed; names the variable.
    """
    try:
        return settings.model_validate({field: env[name] for field, name in variables.items() if env.get(name)})
    except ValidationError as e:
        problem = e.errors()[0]
        got = "" if problem["type"] == "missing" else f", got {problem['input']!r}"
        raise UserError(f"{variables[str(problem['loc'][0])]}: {problem['msg']}{got}") from e


def open_gpu(reach: Reach) -> Cluster:
    """The GPU cluster's API server, by kubeconfig or by projected token.

    Raises:
        UserError: neither is set, or its file is not there.
    """
    if not reach.kubeconfig and not reach.server:
        raise UserError(
            "TRIPOD_GPU_SERVER: not set; set it with TRIPOD_GPU_CA and TRIPOD_GPU_TOKEN, or TRIPOD_GPU_KUBECONFIG"
        )
    if reach.kubeconfig:
        return open_cluster("gpu", kubeconfig=reach.kubeconfig, context=reach.context, retry_s=_RETRY_S)
    return open_cluster(
        "gpu", server=reach.server, ca_file=reach.ca_file, token_file=reach.token_file, retry_s=_RETRY_S
    )


def passed_on(env: Mapping[str, str]) -> dict[str, str]:
    """What pods there need of `env` to reach the store. No secrets: credentials come by a mount."""
    return {name: env[name] for name in _STORE if env.get(name)} | {"AWS_SHARED_CREDENTIALS_FILE": CREDENTIALS}


_STORE = (
    "TRIPOD_STORE",
    "TRIPOD_STORE_RETRY_S",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CA_BUNDLE",
    "AWS_REQUEST_CHECKSUM_CALCULATION",
    "AWS_RESPONSE_CHECKSUM_VALIDATION",
)
