"""Token shards -> a dataset version: a manifest that names them; no bytes move.

version = sha256 over schema version, tokenizer identity, dtype and the documents' tokens in order.
"""

from datetime import timedelta

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step
from steps.lib.errors import UserError


class Params(BaseParams):
    """What to put together, under which name."""

    name: str
    """datasets/<name>/<version>."""
    docs: str
    tokenizer: str
    tokens: tuple[str, ...]
    """Folders that tokenize published, one for each file of `docs`, in any order."""


class Result(BaseResult):
    """The dataset version."""

    dataset: FolderRef
    version: str
    """64 hex characters; the first 16 are in the folder's name."""
    num_documents: int
    num_tokens: int
    """In the training split."""


step = Step(image="data", timeout=timedelta(hours=1), cpus=1, memory_gib=2)

EXAMPLE = Params(name="example", docs="docs/example", tokenizer="tokenizers/example", tokens=("tokens/example",))


def run(params: Params, ctx: Context) -> Result:
    """Publish datasets/<name>/<version>.

    The same version published before, whatever from, stays as it is and is the result.

    Raises:
        UserError: a part is missing, doubled, or was made by another tokenizer.
    """
    from steps.lib.dataset import ordered_parts, publish_version, shards_of_parts, total_by_split, version_of_parts
    from steps.lib.folder import load

    docs = load(ctx.store, params.docs, kind="docs")
    tokenizer = load(ctx.store, params.tokenizer, kind="tokenizer")
    if len(set(params.tokens)) < len(params.tokens):
        raise UserError(f"tokens: a folder is given twice, got {', '.join(params.tokens)}")
    given = {prefix: load(ctx.store, prefix, kind="tokens") for prefix in params.tokens}
    parts = ordered_parts(docs, params.docs, tokenizer, given)
    files = shards_of_parts(parts)
    num_tokens = total_by_split(files, "num_tokens")
    meta = {
        "tokenizer": params.tokenizer,
        "tokenizer_digest": tokenizer.meta["digest"],
        "vocab_size": tokenizer.meta["vocab_size"],
        "eos_id": tokenizer.meta["eos_id"],
        "dtype": parts[0].meta["dtype"],
        "encoder": ", ".join(sorted({part.meta["encoder"] for part in parts})),
        "docs": params.docs,
        "num_documents": total_by_split(docs.files, "num_documents"),
        "num_tokens": num_tokens,
        "text_bytes": total_by_split(docs.files, "text_bytes"),
        **{name: docs.meta[name] for name in ("num_rejected", "num_duplicates", "rejects")},
    }
    version = version_of_parts(ctx.store, parts)
    prefix, _ = publish_version(ctx.store, params.name, version, files, meta)
    ctx.say(f"publish_dataset: {prefix}, {num_tokens['train']} tokens to train on, {num_tokens['heldout']} held out")
    return Result(
        dataset=prefix,
        version=version,
        num_documents=sum(meta["num_documents"].values()),
        num_tokens=num_tokens["train"],
    )
