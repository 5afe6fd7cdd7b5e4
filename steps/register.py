"""A model folder -> the registry: card, lineage, and the aliases latest and champion."""

from datetime import timedelta

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """The model and where it comes from."""

    name: str
    model: str
    checkpoint: str
    dataset: str
    docs: str
    report: str
    """What evaluate found."""
    loss: float
    bits_per_byte: float


class Result(BaseResult):
    """What the registry says now."""

    model: FolderRef
    champion: bool
    """Whether this version is the champion: the first, or better in bits a byte than the one before."""


step = Step(image="data", timeout=timedelta(minutes=10), cached=False)

EXAMPLE = Params(
    name="example", model="models/example/v1", checkpoint="checkpoints/example/step-4", dataset="datasets/example/v1",
    docs="docs/example", report="blobs/sha256/example", loss=1.0, bits_per_byte=1.0,
)


def run(params: Params, ctx: Context) -> Result:
    """Write lineage and card beside the model and move the aliases by compare-and-swap; idempotent."""
    raise NotImplementedError
