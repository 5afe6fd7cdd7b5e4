"""A registered model -> a vLLM endpoint that answers.

__init__.py    the contract, and run
check.py       what is refused before anything starts
smoke.py       the smoke test, and the note that it passed
process.py     a server on this machine
cluster.py     a server on the GPU cluster: place.py where, objects.py what, kept.py what is there

What it does:

    refuse    a model that is broken, or asked for more than it or this machine can
    adopt     a live server of the same name, digest and settings: smoke test, done
    skip      nothing is to stay and this digest passed the same smoke test before: done
    start     on a port that is free, or as a Deployment; wait until healthy, smoke test
    swap      when it is to stay: the state file, or the Service, names the new server, then the old one ends

The old server of the same name answers until the new one has passed its smoke test.
"""

from datetime import timedelta
from typing import Literal

from pydantic import Field

from steps.contract import Context, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """What to serve and how."""

    model: str
    """A model folder."""
    name: str
    """The name that users put into a request."""
    keep: bool = False
    """Whether the server stays when the smoke test is done."""
    port: int = Field(0, ge=0, le=65535)
    """0: one that is free; on a cluster 8000."""
    gpus: Literal[1, 2, 4, 8] = 1
    """That share a replica, where the site serves on GPUs."""
    replicas: int = Field(1, ge=1)
    """On a cluster."""
    max_model_len: int = Field(ge=8)
    """Tokens of prompt and completion together."""
    prompt: str = Field(min_length=1)
    """What the smoke test asks."""
    max_tokens: int = Field(48, ge=1)
    """Tokens that the smoke test asks for."""


class Result(BaseResult):
    """What answers now."""

    endpoint: str
    """http://host:port/v1 while the server stays, else ""; on a cluster the host is a Service there."""
    completion: str
    """What the smoke test got, prompt not included."""
    adopted: bool
    """Whether a server that ran already was taken."""


step = Step(image="serve", launches=True, timeout=timedelta(hours=8), cpus=2, memory_gib=4, cached=False)

EXAMPLE = Params(model="models/example/v1", name="example", max_model_len=32, prompt="def ", max_tokens=8)


def run(params: Params, ctx: Context) -> Result:
    """Serve the model, or adopt the endpoint that serves this digest, and ask it the prompt.

    Raises:
        UserError: the model is broken or asked for more than it can, or the port is taken.
        TemporaryError: the server did not come up in time.
        RejectedError: the answer is empty.
    """
    if ctx.env.get("TRIPOD_SERVE_TARGET") == "kubernetes":
        from steps.deploy.cluster import deploy as deploy_on_cluster

        return deploy_on_cluster(params, ctx)
    from steps.deploy.process import deploy

    return deploy(params, ctx)
