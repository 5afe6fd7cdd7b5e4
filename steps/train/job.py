"""What the agent hands to its workers: one JSON file."""

from pydantic import BaseModel, ConfigDict

from steps.train import Params
from steps.train.runtime import Runtime


class Job(BaseModel):
    """One call of the train step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    params: Params
    store_uri: str
    base: str
    """checkpoints/<train-key>: checkpoints and metrics are below it."""
    eos_id: int
    """Of the dataset's tokenizer."""
    runtime: Runtime
