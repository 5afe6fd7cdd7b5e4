"""A registered model -> a vLLM endpoint that answers."""

from datetime import timedelta

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
    """0: one that is free."""
    max_model_len: int = Field(ge=8)
    """Tokens of prompt and completion together."""
    prompt: str
    """What the smoke test asks."""
    max_tokens: int = Field(48, ge=1)
    """Tokens that the smoke test asks for."""


class Result(BaseResult):
    """What answers now."""

    endpoint: str
    """http://host:port/v1 while the server stays, else ""."""
    completion: str
    """What the smoke test got, prompt not included."""
    adopted: bool
    """Whether a server that ran already was taken."""


step = Step(image="serve", timeout=timedelta(minutes=30), cpus=2, memory_gib=4, cached=False)

EXAMPLE = Params(model="models/example/v1", name="example", max_model_len=32, prompt="def ")


def run(params: Params, ctx: Context) -> Result:
    """Serve the model, or adopt the endpoint that serves this digest, and ask it the prompt.

    Raises:
        UserError: the model is broken or asked for more than it can, or the port is taken.
        TemporaryError: the server did not come up in time.
        RejectedError: the answer is empty.
    """
    raise NotImplementedError
