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
    """Publish the tokenizer as tokenizers/<version>; the same documents give the same bytes.

    Raises:
        UserError: no such docs folder.
    """
    from steps.lib.data.bpe import publish_tokenizer, sample, train
    from steps.lib.data.docs import read_texts
    from steps.lib.folder import load

    docs = load(ctx.store, params.docs, kind="docs")
    files = [file for file in docs.files if file.meta["split"] == "train"]
    batches = (batch for file in files for batch in read_texts(ctx.store, file, ctx.scratch))
    total_bytes = sum(file.meta["text_bytes"] for file in files)
    texts = sample(batches, total_bytes, params.sample_mib << 20)
    prefix, meta = publish_tokenizer(ctx.store, train(texts, params.vocab_size))
    used_bytes = min(params.sample_mib << 20, total_bytes)
    ctx.say(f"tokenizer: {meta['vocab_size']} entries from at most {used_bytes / (1 << 20):.1f} MiB of text")
    return Result(tokenizer=prefix, vocab_size=meta["vocab_size"])
