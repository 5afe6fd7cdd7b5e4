"""What a step is. A module `steps.NAME` with

    Params    frozen, its fields are the command line           python -m steps NAME --field=value
    Result    frozen, its fields are the output parameters      JSON, the last line of stdout
    step      Step(...): image, resources, time-out, cached or not
    run       run(params, ctx) -> Result
    EXAMPLE   Params that the contract test runs
    fingerprint   optional: fingerprint(params, ctx) -> str, when the result also rests on something that
                  Params only names (files outside the store)

and nothing else: the same command runs as a subprocess, in a container, in an Argo pod, in a
TrainJob pod. What differs from place to place comes by environment, never by Params:

    TRIPOD_STORE          where the data is, file:///folder or s3://bucket/prefix   (required)
    TRIPOD_RUN_ID         the run this call belongs to                              (default: adhoc)
    TRIPOD_OUTPUTS        a folder that gets one file a Result field                (default: none)
    TRIPOD_WORKERS        processes for CPU work                                    (default: all cores)
    TRIPOD_SCRATCH        where temporary folders are made                          (default: $TMPDIR)
    TRIPOD_CACHE_VERIFY   head or full: how a recorded result is checked            (default: head)
    TRIPOD_PARENT         pid whose death ends this process too (local engine)      (default: none)
    TRIPOD_STATE          where servers that stay are kept track of                 (default: ~/.local/state/tripod)
    TRIPOD_STORE_RETRY_S  how long an S3 call is tried again, seconds               (default: 60)
    TRIPOD_DEVICE ...     the gang that trains: steps/train/runtime.py
    TRIPOD_GPU_SERVER ... the GPU cluster, for target kubernetes: steps/lib/trainjob/place.py
    TRIPOD_TREE           the sources to run instead of the installed ones: steps/lib/tree.py  (default: none)
    TRIPOD_VLLM_COMMAND   the server in vLLM's place: steps/lib/vllm.py             (default: vLLM's own)
    TRIPOD_WEBHOOK_URL    who is told how a run ended; a secret                     (default: nobody)

Importing this module or a step's contract pulls in no torch, pyarrow or boto3.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict

from steps.lib.errors import UserError

if TYPE_CHECKING:  # a step is called with a store; only what uses one for itself imports it
    from steps.lib.store import Store

_NOT_STEPS = {"__main__", "contract", "lib", "records", "runner"}


@dataclass(frozen=True)
class StoreMark:
    """Marks a Result field that names content in the store (steps.lib.folder)."""


FolderRef = Annotated[str, StoreMark()]
"""Key of a published folder. A recorded result is a hit only while all that it names is whole."""
BlobRef = Annotated[str, StoreMark()]
"""Key of one object named by its digest, `blobs/sha256/...`."""


class Params(BaseModel):
    """Base of every step's parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Result(BaseModel):
    """Base of every step's result."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a place that runs the step has to provide."""

    image: Literal["data", "train", "serve"]
    """The container image, named by its set of dependencies (images/)."""
    timeout: timedelta
    """An attempt that takes longer is ended and counts as failed."""
    cpus: int = 1
    """CPU cores asked for."""
    memory_gib: int = 1
    """Memory asked for, GiB."""
    launches: bool = False
    """On a site with a GPU cluster the step itself runs there, and its pod on Compute only watches."""
    cached: bool = True
    """Whether a recorded result stands for a call. False for steps that act on a live system."""
    libraries: tuple[str, ...] = ()
    """Distributions whose version is part of the result's key."""


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a call of a step gets besides its Params. None of it may change the result."""

    store: "Store"
    run_id: str
    key: str
    """Key of this call's result record, 64 hex characters."""
    scratch: Path
    """An empty folder of this call's own, removed afterwards."""
    workers: int = 1
    """How many processes to use for CPU work."""
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """Where a step reads the settings of the place that it runs in."""
    say: Callable[[str], None] = _say
    """Tell the person who watches one line (stderr)."""


def step_names() -> list[str]:
    """Names of all steps, sorted."""
    package = importlib.import_module("steps")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in _NOT_STEPS)


def load_step(name: str) -> ModuleType:
    """The module of step `name`.

    Raises:
        UserError: there is no such step.
    """
    if name not in step_names():
        raise UserError(f"step: got {name!r}, allowed are {', '.join(step_names())}")
    return importlib.import_module(f"steps.{name}")
