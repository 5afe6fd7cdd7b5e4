"""Documents -> a byte-level BPE tokenizer trained on the training documents."""

from datetime import timedelta

from pydantic import Field

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """What to train on and how large."""

    docs: str
    """A folder that ingest published."""
    vocab_size: int = Field(ge=260)
    """Entries, special tokens included: 256 bytes, specials, merges."""
    sample_mib: int = Field(64, ge=1)
    """Train on at most this much text, taken evenly over the documents in their order."""


class Result(BaseResult):
    """The tokenizer, as a Hugging Face folder."""

    tokenizer: FolderRef
    vocab_size: int
    """Entries it really has: largest id + 1, added tokens included."""


step = Step(image="data", timeout=timedelta(hours=2), cpus=2, memory_gib=4, libraries=("tokenizers",))

EXAMPLE = Params(docs="docs/example", vocab_size=300)


def run(params: Params, ctx: Context) -> Result:
    """Publish the tokenizer as tokenizers/<version>; the same documents give the same bytes."""
    raise NotImplementedError
