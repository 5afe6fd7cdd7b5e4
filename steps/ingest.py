"""Raw text -> documents: read, clean, drop exact duplicates, split off held-out documents.

The output depends on the set of documents alone: they are ordered by their content digest, so file
order, workers and partitions do not matter, and the order is as good as a shuffle.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step
from steps.lib.errors import RejectedError, UserError

if TYPE_CHECKING:
    from steps.lib.data.gather import Counts
    from steps.lib.data.source import Source, SourceFile


class CleanRules(BaseModel):
    """Which documents are kept. Lengths in characters after cleaning."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    min_chars: int = Field(1, ge=1)
    """Shorter documents are rejected as too_short."""
    max_chars: int = Field(8_000_000, ge=1)
    """Longer documents are rejected as too_long."""
    max_reject_rate: float = Field(0.5, ge=0, le=1)
    """More rejects than this part of all documents (duplicates apart) stop the run with exit 3."""


class Params(BaseParams):
    """What to read and what to keep."""

    source: str
    """`python:stdlib`, /folder, file:///folder, s3://bucket/prefix, or a key below raw/ in the store. Links are followed."""
    include: tuple[str, ...] = Field(("*",), min_length=1)
    """Shell patterns; a file whose path or name matches one is read."""
    format: Literal["auto", "text", "jsonl", "parquet"] = "auto"
    """auto goes by the file name, less .gz or .zst."""
    text_field: str = "text"
    """The field of a JSONL record or Parquet row that holds the document."""
    clean: CleanRules = CleanRules()
    holdout_fraction: float = Field(0.01, ge=0, lt=1)
    """Part of the documents kept from training, chosen by content digest."""


class Result(BaseResult):
    """Where the documents are and how many there are."""

    docs: FolderRef
    partitions: tuple[str, ...]
    """Names of the files in `docs`, the units that tokenizing fans out over."""
    num_documents: int
    """Kept, training and held out together."""
    num_rejected: int
    """Not kept, for whatever reason, duplicates apart."""
    num_duplicates: int


step = Step(image="data", timeout=timedelta(hours=6), cpus=2, memory_gib=4, libraries=("pyarrow",))

EXAMPLE = Params(source="raw/example", include=("*.txt",), holdout_fraction=0.2)


def fingerprint(params: Params, ctx: Context) -> str:
    """Digest of the listing of the source: path, size and content tag of each file."""
    from steps.lib.data.source import fingerprint_of

    source, files = _files(params, ctx)
    return fingerprint_of(source, files, ctx.store, ctx.workers)


def run(params: Params, ctx: Context) -> Result:
    """Publish the documents as docs/<version>.

    Raises:
        UserError: the source is missing, unreadable or holds no file that matches.
        RejectedError: nothing is left, or more is rejected than the limit allows.
    """
    from steps.lib.data.docs import merge, publish_docs
    from steps.lib.data.gather import Rules, gather

    source, files = _files(params, ctx)
    clean = params.clean
    rules = Rules(params.format, params.text_field, clean.min_chars, clean.max_chars)
    counts, runs = gather(source, files, rules, ctx.scratch, workers=ctx.workers)
    _check_rejects(counts, clean.max_reject_rate, params.text_field)
    merged = merge(runs, counts, params.holdout_fraction, ctx.scratch, workers=ctx.workers)
    num_documents = sum(file.num_documents for file in merged)
    num_duplicates = counts.num_records - counts.rejects.total - num_documents
    meta = {
        "num_files": len(files),
        "num_records": counts.num_records,
        "num_duplicates": num_duplicates,
        "num_rejected": counts.rejects.total,
        "rejects": counts.rejects.as_meta(),
    }
    prefix, manifest = publish_docs(ctx.store, merged, meta, workers=ctx.workers)
    ctx.say(
        f"ingest: {num_documents} documents of {counts.num_records} records in {len(files)} files, "
        f"{num_duplicates} duplicates, {counts.rejects.total} rejected ({counts.rejects.top() or 'none'})"
    )
    return Result(
        docs=prefix,
        partitions=tuple(file.name for file in manifest.files),
        num_documents=num_documents,
        num_rejected=counts.rejects.total,
        num_duplicates=num_duplicates,
    )


def _files(params: Params, ctx: Context) -> "tuple[Source, list[SourceFile]]":
    from steps.lib.data.source import matching, resolve

    source = resolve(params.source, ctx.store)
    there = source.files()
    files = matching(there, params.include)
    odd = [file.path for file in files if not file.tag]
    if odd and params.source == "python:stdlib":  # the interpreter's folder is not the user's to mend
        files = [file for file in files if file.tag]
    elif odd:
        raise UserError(
            f"source {params.source}: {odd[0]} is no file and leads to none; remove it, or set data.include to leave it out"
            + (f" (and {len(odd) - 1} more)" if len(odd) > 1 else "")
        )
    if not files:
        raise UserError(
            f"source {params.source}: none of its {len(there)} files matches include {list(params.include)}; "
            f"the first is {there[0].name}: set data.include, as in --set 'data.include=[\"*.txt*\"]'"
            if there
            else f"source {params.source}: holds no files"
        )
    return source, files


def _check_rejects(counts: "Counts", max_reject_rate: float, text_field: str) -> None:
    rejected, records = counts.rejects.total, counts.num_records
    missing = "missing_field" in counts.rejects.examples
    hint = f"; the text is looked for in field {text_field!r}: data.text_field names another" if missing else ""
    if rejected == records:
        raise RejectedError(f"0 of {records} left: {counts.rejects.top() or 'every file is empty'}{hint}")
    if rejected > max_reject_rate * records:
        top = [f"{e.file}:{e.row} {e.preview!r}" for shown in counts.rejects.examples.values() for e in shown[:1]]
        raise RejectedError(
            f"{rejected} of {records} records rejected, more than max_reject_rate={max_reject_rate}: "
            f"{counts.rejects.top()}; first {', '.join(top[:3])}{hint}"
        )
