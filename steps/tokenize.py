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


step = Step(
    image="data", timeout=timedelta(hours=6), cpus=2, memory_gib=4, libraries=("pyarrow", "tokenizers", "fastokens")
)

EXAMPLE = Params(docs="docs/example", tokenizer="tokenizers/example", partition="train-00000.arrow")


def run(params: Params, ctx: Context) -> Result:
    """Publish the shards of one partition as tokens/<digest>.

    Raises:
        UserError: no such docs, partition or tokenizer.
    """
    from steps.lib.data.docs import file_of, read_texts
    from steps.lib.data.encode import open_encoder, sample_of
    from steps.lib.data.tokens import ShardWriter, dtype_of, end_documents
    from steps.lib.folder import Manifest, load, publish, read

    file = file_of(load(ctx.store, params.docs, kind="docs"), params.docs, params.partition)
    tokenizer_folder = load(ctx.store, params.tokenizer, kind="tokenizer")
    tokenizer = tokenizer_folder.meta
    tokenizer_json = read(ctx.store, file_of(tokenizer_folder, params.tokenizer, "tokenizer.json")).decode()
    dtype = dtype_of(tokenizer["vocab_size"])
    writer = ShardWriter(ctx.store, ctx.scratch, file.meta["split"], dtype, params.shard_mib << 20)
    encoder = None
    for batch in read_texts(ctx.store, file, ctx.scratch):
        texts = batch.to_pylist()
        encoder = encoder or open_encoder(tokenizer_json, sample_of(texts))
        writer.add(*end_documents(*encoder.encode(texts), tokenizer["eos_id"], dtype))
    writer.close()
    assert encoder, "ingest publishes no file without documents"
    meta = {
        "docs": params.docs,
        "partition": params.partition,
        "split": file.meta["split"],
        "num_documents": writer.num_documents,
        "num_tokens": writer.num_tokens,
        "tokenizer": params.tokenizer,
        "tokenizer_digest": tokenizer["digest"],
        "dtype": dtype,
        "encoder": encoder.name,
    }
    prefix = f"tokens/{Manifest(kind='tokens', files=tuple(writer.files), meta=meta).digest[:16]}"
    publish(ctx.store, prefix, kind="tokens", files=writer.files, meta=meta)
    ctx.say(f"tokenize: {params.partition}: {writer.num_tokens} tokens by {encoder.name}")
    return Result(tokens=prefix, num_tokens=writer.num_tokens)
