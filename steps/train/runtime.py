"""Where training runs: typed settings from the environment, never Params, never in a key.

TRIPOD_TRAIN_TARGET   process, or kubernetes: steps/lib/trainjob/place.py   (default: process)
TRIPOD_DEVICE         cpu or cuda                                   (default: cpu)
TRIPOD_BACKEND        gloo or nccl                                  (default: nccl on cuda, gloo on cpu)
TRIPOD_NPROC          processes on this machine                     (default: PET_NPROC_PER_NODE, else 1)
TRIPOD_NODES          machines                                      (default: PET_NNODES, else 1)
TRIPOD_THREADS        CPU threads a process                         (default: cores / processes)
TRIPOD_GRACE_S        seconds from being told to stop to being killed  (default: 30)
TRIPOD_STORE_WAIT_S   seconds for which the gang waits for a store that is away  (default: 2700)
TRIPOD_PEAK_TFLOPS    peak of one device, for MFU                   (default: MFU is not shown)
PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT   as Kubeflow Trainer and torchrun set them
"""

import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steps.lib.errors import UserError


class Runtime(BaseModel):
    """The gang's shape and place, the same for every process of this machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: Literal["process", "kubernetes"] = "process"
    """process: the workers are processes of this machine, part of a gang over `nodes` machines."""
    device: Literal["cpu", "cuda"] = "cpu"
    backend: Literal["gloo", "nccl"] = "gloo"
    """What gradients and parameters travel by; control and checkpoints always go by gloo."""
    nproc: int = Field(1, ge=1)
    """Processes on this machine."""
    nodes: int = Field(1, ge=1)
    node_rank: int = Field(0, ge=0)
    master_addr: str = ""
    """Where node 0 listens; "" when the gang is this machine alone."""
    master_port: int = Field(29500, ge=1, lt=65536)
    threads: int = Field(1, ge=1)
    """CPU threads a process."""
    grace_s: int = Field(30, ge=1)
    """Seconds that the place gives between asking us to stop and killing us."""
    store_wait_s: int = Field(45 * 60, ge=0)
    """How long the gang waits for a store that is away before it gives the machines back."""
    peak_tflops: float = Field(0.0, ge=0)
    """Of one device, in the precision trained in; 0 when unknown."""

    @property
    def ranks(self) -> int:
        """Processes of the whole gang."""
        return self.nproc * self.nodes


_FIELDS = {
    "target": "TRIPOD_TRAIN_TARGET",
    "device": "TRIPOD_DEVICE",
    "backend": "TRIPOD_BACKEND",
    "nproc": "TRIPOD_NPROC",
    "nodes": "TRIPOD_NODES",
    "node_rank": "PET_NODE_RANK",
    "master_addr": "PET_MASTER_ADDR",
    "master_port": "PET_MASTER_PORT",
    "threads": "TRIPOD_THREADS",
    "grace_s": "TRIPOD_GRACE_S",
    "store_wait_s": "TRIPOD_STORE_WAIT_S",
    "peak_tflops": "TRIPOD_PEAK_TFLOPS",
}


def read_runtime(env: Mapping[str, str]) -> Runtime:
    """The settings in `env`.

    Raises:
        UserError: a value is not allowed, or two of them contradict each other; names the variable.
    """
    values: dict[str, Any] = {field: env[name] for field, name in _FIELDS.items() if env.get(name)}
    _take(values, "nproc", env, "TRIPOD_NPROC", "PET_NPROC_PER_NODE")
    _take(values, "nodes", env, "TRIPOD_NODES", "PET_NNODES")
    values.setdefault("backend", "nccl" if values.get("device") == "cuda" else "gloo")
    try:
        runtime = Runtime.model_validate(values)
        if "threads" not in values:
            threads = max(1, (os.cpu_count() or 1) // runtime.nproc)
            runtime = runtime.model_copy(update={"threads": threads})
    except ValidationError as e:
        problem = e.errors()[0]
        name = _FIELDS[str(problem["loc"][0])]
        raise UserError(f"{name}: {problem['msg']}, got {problem['input']!r}") from e
    if runtime.backend == "nccl" and runtime.device == "cpu":
        raise UserError("TRIPOD_BACKEND: got 'nccl' with TRIPOD_DEVICE=cpu, allowed there is gloo")
    if runtime.nodes > 1 and not runtime.master_addr:
        raise UserError(f"PET_MASTER_ADDR: not set, needed for {runtime.nodes} nodes")
    return runtime


def _take(values: dict[str, Any], field: str, env: Mapping[str, str], ours: str, theirs: str) -> None:
    """Let torchrun's variable stand for ours; both together must agree (processes and GPUs are never guessed)."""
    asked, given = env.get(ours, ""), env.get(theirs, "")
    if not given:
        return
    if not given.isdecimal():  # `auto` and `gpu`: torchrun would count this machine's cores or devices
        if not asked:
            raise UserError(f"{theirs}: got {given!r}, allowed is a number (or set {ours})")
        return
    if asked and asked != given:
        raise UserError(f"{ours}: got {asked}, but {theirs} is {given}; they must be equal")
    values[field] = given
