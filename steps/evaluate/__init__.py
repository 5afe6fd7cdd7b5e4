"""A checkpoint -> its held-out loss and completions, judged by a gate."""

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from steps.contract import BlobRef, Context, Params as BaseParams, Result as BaseResult, Step


class Gate(BaseModel):
    """What a model must reach. A value that is not a finite number fails."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_loss: float = Field(gt=0)
    """Held-out loss, nats a token; at most."""
    beats: Literal["nothing", "bigram"] = "nothing"
    """bigram: the loss must also be below a smoothed bigram model's, counted on the training split."""
    prompts: tuple[str, ...] = ()
    """Completed greedily by the model; kept in the report."""
    expect_any: tuple[str, ...] = ()
    """A completion passes when it contains one of these as a whole word."""
    min_passing: int = Field(0, ge=0)
    """So many completions must pass."""
    max_new_tokens: int = Field(48, ge=1)


class Params(BaseParams):
    """What to judge by what."""

    checkpoint: str
    dataset: str
    gate: Gate
    max_tokens: int = Field(2_000_000, ge=1)
    """Judge on at most this many held-out tokens, from the start of the split."""


class Result(BaseResult):
    """The numbers; the report has the raw completions too."""

    loss: float
    """Nats a token, held-out split."""
    bits_per_byte: float
    """Held-out loss a byte of text: comparable across tokenizers."""
    baseline_loss: float
    """Of the baseline that the gate names on the same tokens; 0 when it names none."""
    report: BlobRef
    """JSON: gate, numbers, prompts and raw completions."""


step = Step(image="train", timeout=timedelta(hours=2), cpus=2, memory_gib=4, libraries=("torch", "transformers"))

EXAMPLE = Params(
    checkpoint="checkpoints/example/step-4", dataset="datasets/example/v1", gate=Gate(max_loss=100.0, prompts=("def ",), max_new_tokens=4)
)


def run(params: Params, ctx: Context) -> Result:
    """Evaluate on the held-out split.

    Raises:
        RejectedError: the gate said no; the message has each number and its limit, and where the report is.
    """
    raise NotImplementedError
