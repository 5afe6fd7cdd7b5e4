"""A dataset version: a manifest that names token shards, in the order of the documents.

    datasets/<name>/<version>/manifest.json
    files     the shards; meta: split, num_tokens, num_documents, values_offset (steps/lib/data/tokens.py)
    meta      version, tokenizer (prefix), tokenizer_digest, vocab_size, dtype, eos_id, encoder, docs,
              num_documents, num_tokens, text_bytes (each by split), num_rejected, num_duplicates, rejects

The version is sha256 over schema version, tokenizer, dtype and the documents' tokens in order (by
way of their digests), whatever the shards, the partitions, the encoder and where the text came from.
Content published before under the same version stays as it is; lineage is in the result records.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from steps.lib.digest import digest_of
from steps.lib.errors import UserError
from steps.lib.folder import MANIFEST, File, Manifest, check, check_file, load, publish
from steps.lib.store import Store, check_key

SCHEMA_VERSION = 1
DIGESTS = "digests"
"""Name of the file of document digests in a tokens folder."""
SPLITS = ("train", "heldout")


def dataset_version(tokenizer_digest: str, dtype: str, digests: Mapping[str, Iterable[bytes]]) -> str:
    """The version, 64 hex characters.

    Args:
        digests: for each split the documents' digests in order, in pieces of any length.
    """
    documents = {}
    for split, pieces in digests.items():
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        documents[split] = digest.hexdigest()
    return digest_of(
        {"schema_version": SCHEMA_VERSION, "tokenizer": tokenizer_digest, "dtype": dtype, "documents": documents}
    )


def ordered_parts(
    docs: Manifest, docs_prefix: str, tokenizer: Manifest, parts: Mapping[str, Manifest]
) -> list[Manifest]:
    """The tokens folders in the order of the docs folder's files, each there once.

    Args:
        parts: prefix -> manifest of a tokens folder.

    Raises:
        UserError: a part is missing, doubled, of other documents or by another tokenizer.
    """
    found: dict[str, str] = {}
    for prefix, part in parts.items():
        name, digest = part.meta["partition"], part.meta["tokenizer_digest"]
        if part.meta["docs"] != docs_prefix:
            raise UserError(f"{prefix}: holds tokens of {part.meta['docs']}, expected of {docs_prefix}")
        if digest != tokenizer.meta["digest"]:
            raise UserError(
                f"{prefix}: made by tokenizer {part.meta['tokenizer']} (digest {digest[:16]}), expected digest "
                f"{tokenizer.meta['digest'][:16]}; run tokenize again"
            )
        if name in found:
            raise UserError(f"{prefix}: {name} of {docs_prefix} is given twice, also by {found[name]}")
        found[name] = prefix
    missing = [file.name for file in docs.files if file.name not in found]
    if missing:
        raise UserError(f"{docs_prefix}: no tokens given of {', '.join(missing)}; run tokenize for it")
    ordered = [parts[found[file.name]] for file in docs.files]
    for file, part in zip(docs.files, ordered, strict=True):
        assert part.meta["num_documents"] == file.meta["num_documents"], file.name
    return ordered


def version_of_parts(store: Store, parts: Sequence[Manifest]) -> str:
    """The version of the dataset that the ordered parts make."""
    digests = {split: _split_digests(store, parts, split) for split in SPLITS}
    return dataset_version(parts[0].meta["tokenizer_digest"], parts[0].meta["dtype"], digests)


def shards_of_parts(parts: Sequence[Manifest]) -> list[File]:
    """All shards in order, named by partition and number."""
    return [
        file.model_copy(update={"name": f"{part.meta['partition'].removesuffix('.arrow')}-{file.name}"})
        for part in parts
        for file in part.files
        if file.name != DIGESTS
    ]


def publish_version(
    store: Store, name: str, version: str, files: Sequence[File], meta: dict[str, Any]
) -> tuple[str, Manifest]:
    """Publish datasets/<name>/<version>, unless that version is there already.

    Returns:
        The prefix, and the manifest that stands there.

    Raises:
        UserError: `name` cannot be part of a key, or the version is there and broken.
    """
    prefix = check_key(f"datasets/{name}/{version[:16]}")
    if store.head(f"{prefix}/{MANIFEST}") is not None:
        there = load(store, prefix, kind="dataset")
        problem = check(store, prefix)
        if problem:
            raise UserError(f"{prefix}: {problem}; bring it back, or publish under another name")
        if there.meta["version"] == version:
            return prefix, there
    return prefix, publish(store, prefix, kind="dataset", files=files, meta={"version": version, **meta})


CHECKED_BYTES = 8 << 30
"""A split of up to so many bytes is hashed before it is used: a second for each GiB."""


def check_shards(store: Store, prefix: str, split: str, say: Callable[[str], None]) -> None:
    """Compare the shards of a split with their digests: reading by byte ranges could not tell.

    Args:
        say: is told when the split is too large to be hashed first.

    Raises:
        UserError: no such dataset, or a shard is missing or differs.
    """
    files = [file for file in load(store, prefix, kind="dataset").files if file.meta["split"] == split]
    size = sum(file.size for file in files)
    if size > CHECKED_BYTES:
        say(f"{prefix}: the {size / 2**30:.0f} GiB of split {split!r} are read without comparing digests")
        return
    for file in files:
        if problem := check_file(store, file, full=True):
            raise UserError(f"{prefix}: {problem}; remove that object, then run again: what made it makes it anew")


def total_by_split(files: Iterable[File], what: str) -> dict[str, int]:
    """The sum of a count in the files' meta, for each split."""
    totals = dict.fromkeys(SPLITS, 0)
    for file in files:
        totals[file.meta["split"]] += file.meta[what]
    return totals


def _split_digests(store: Store, parts: Sequence[Manifest], split: str) -> Iterator[bytes]:
    for part in parts:
        if part.meta["split"] == split:
            yield store.get(next(file.key for file in part.files if file.name == DIGESTS))
