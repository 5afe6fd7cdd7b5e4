"""A folder of the store -> files on this machine or volume, checked by their digests."""

from datetime import timedelta
from pathlib import Path

from steps.contract import Context, Params as BaseParams, Result as BaseResult, Step
from steps.lib import folder
from steps.lib.errors import UserError


class Params(BaseParams):
    """What to copy where."""

    ref: str
    """A published folder: a model, a dataset."""
    to: str
    """An absolute path; files of the same names are overwritten."""


class Result(BaseResult):
    """What was copied."""

    num_files: int
    num_bytes: int


step = Step(image="data", timeout=timedelta(hours=2), cached=False)

EXAMPLE = Params(ref="models/example/v1", to="/tmp/model")


def run(params: Params, ctx: Context) -> Result:
    """Copy every file.

    Raises:
        UserError: no such folder, or a file differs from its digest; the target is no absolute path.
    """
    target = Path(params.to)
    if not target.is_absolute():
        raise UserError(f"to: got {params.to!r}, allowed is an absolute path")
    target.mkdir(parents=True, exist_ok=True)
    manifest = folder.download(ctx.store, params.ref, target)
    return Result(num_files=len(manifest.files), num_bytes=sum(file.size for file in manifest.files))
