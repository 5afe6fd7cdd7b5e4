"""Raw text -> documents: read, clean, drop exact duplicates, split off held-out documents.

The output depends on the set of documents alone: they are ordered by their content digest, so file
order, workers and partitions do not matter, and the order is as good as a shuffle.
"""

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class CleanRules(BaseModel):
    """Which documents are kept. Lengths in characters after cleaning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_chars: int = Field(1, ge=1)
    """Shorter documents are rejected as too_short."""
    max_chars: int = Field(8_000_000, ge=1)
    """Longer documents are rejected as too_long."""
    max_reject_rate: float = Field(0.5, ge=0, le=1)
    """More rejects than this part of all documents (duplicates apart) stop the run with exit 3."""


class Params(BaseParams):
    """What to read and what to keep."""

    source: str
    """`python:stdlib`, /folder, file:///folder, s3://bucket/prefix, or a key below raw/ in the store."""
    include: tuple[str, ...] = ("*",)
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
    raise NotImplementedError


def run(params: Params, ctx: Context) -> Result:
    """Publish the documents as docs/<version>.

    Raises:
        UserError: the source is missing, unreadable or holds no file that matches.
        RejectedError: nothing is left, or more is rejected than the limit allows.
    """
    raise NotImplementedError
