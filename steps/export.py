"""A checkpoint -> a model folder that transformers and vLLM load."""

from datetime import timedelta

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """What to export, under which name."""

    checkpoint: str
    dataset: str
    """Names the tokenizer that goes with the model."""
    name: str
    """models/<name>/<version>."""


class Result(BaseResult):
    """The model folder."""

    model: FolderRef
    digest: str
    """Of weights, config and tokenizer: 64 hex characters; the first 16 are the version."""
    num_parameters: int


step = Step(image="train", timeout=timedelta(hours=2), cpus=2, memory_gib=8, libraries=("torch", "transformers", "safetensors"))

EXAMPLE = Params(checkpoint="checkpoints/example/step-4", dataset="datasets/example/v1", name="example")


def run(params: Params, ctx: Context) -> Result:
    """Write safetensors, config, generation settings and tokenizer; reload them and compare the logits.

    Raises:
        UserError: the tokenizer does not fit the model, or stop tokens disagree.
    """
    raise NotImplementedError
