"""One file of documents -> token shards (Arrow IPC), named by their content.

Runs once for each file of the docs folder, in parallel.
"""

from datetime import timedelta

from pydantic import Field

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """Which documents, by which tokenizer."""

    docs: str
    tokenizer: str
    partition: str
    """Name of one file in `docs`."""
    shard_mib: int = Field(64, ge=1)
    """A shard ends at the first document end past this many MiB of tokens."""


class Result(BaseResult):
    """A folder of kind `tokens` whose files are the shards."""

    tokens: FolderRef
    num_tokens: int


step = Step(image="data", timeout=timedelta(hours=6), cpus=2, memory_gib=4, libraries=("pyarrow", "tokenizers", "fastokens"))

EXAMPLE = Params(docs="docs/example", tokenizer="tokenizers/example", partition="train-00000.arrow")


def run(params: Params, ctx: Context) -> Result:
    """Publish the shards of one partition as tokens/<digest>."""
    raise NotImplementedError
