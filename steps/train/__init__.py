"""A dataset -> a trained checkpoint: torchrun, FSDP2, our checkpoints on the store; here or on the GPU cluster.

__init__.py    the contract, and run
cluster.py     target kubernetes: a TrainJob on the GPU cluster whose pods run this step
preflight.py   what is refused before a process starts
runtime.py     settings of the place: device, processes, grace
size.py        memory for each GPU, estimated without torch
launch.py      lease, torchrun's agent, signals, the cause of a failure
outcome.py     the files by which workers tell how they ended
job.py         what the agent hands to the workers
worker.py      one process: signals, boundary, outcome
work.py        its work: set-up, then
loop.py        the loop: step, agree, log, save
batches.py     this rank's data, two steps ahead; waiting for a store that is away
gang.py        process groups, mesh, device
control.py     one small message a step: stop flags, loss, sample ids
model.py       FSDP2, start values, loss, activation checkpointing
optimizer.py   AdamW, clipping
schedule.py    learning rate of a step
state.py       what a checkpoint holds; random number generators
stage.py       the copy of it in host memory
saver.py       saving while training goes on
resume.py      going on from the newest whole checkpoint
metrics.py     the log of the trajectory, beside the checkpoints
progress.py    what a person sees
"""

from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step
from steps.lib.errors import RejectedError, UserError
from steps.lib.llama import ModelConfig


class TrainConfig(BaseModel):
    """How to train. Batch sizes are in sequences, learning rates for each optimizer step."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: int = 0
    steps: int = Field(ge=1)
    """Optimizer steps."""
    global_batch: int = Field(ge=1)
    """Sequences an optimizer step, over all ranks."""
    micro_batch: int = Field(ge=1)
    """Sequences a forward pass on one rank; accumulation = global_batch / (micro_batch x ranks)."""
    learning_rate: float = Field(gt=0)
    """Peak."""
    min_learning_rate: float = Field(0.0, ge=0)
    """Where the cosine ends."""
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.1, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    clip_norm: float = Field(1.0, gt=0)
    """Largest gradient norm; larger gradients are scaled down to it."""
    shuffle_window_mib: float = Field(8.0, gt=0)
    """Samples are shuffled within windows of about this many MiB of tokens, windows among themselves."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What matrices are multiplied in; parameters, reductions and optimizer stay float32."""
    compile: bool = False
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    loss_chunk_tokens: int = Field(0, ge=0)
    """Compute logits and cross-entropy for this many tokens at a time; 0 for all at once."""
    replicate: int = Field(1, ge=1)
    """Replicas of the sharded model (HSDP); ranks must be a multiple."""
    deterministic: bool = False
    """Ask torch for deterministic kernels (costs speed on GPUs)."""
    checkpoint_every_steps: int = Field(ge=1)
    keep_checkpoints: int = Field(2, ge=1)
    """Older ones go once a newer one is committed."""
    max_failed_saves: int = Field(3, ge=0)
    """That many saves in a row may fail before training stops."""


class Params(BaseParams):
    """What to train on what."""

    dataset: str
    model: ModelConfig
    train: TrainConfig


class Result(BaseResult):
    """The last checkpoint."""

    checkpoint: FolderRef
    """checkpoints/<train-key>/step-<n>."""
    step: int
    train_loss: float
    """Mean of the last 20 steps, nats a token."""
    num_tokens: int
    """Tokens trained on, all epochs."""


step = Step(
    image="train", launches=True, timeout=timedelta(days=30), cpus=2, memory_gib=8, libraries=("torch", "transformers")
)

EXAMPLE = Params(
    dataset="datasets/example/v1",
    model=ModelConfig(
        num_layers=1,
        hidden_size=32,
        intermediate_size=64,
        num_heads=2,
        num_kv_heads=1,
        sequence_length=32,
        vocab_size=300,
    ),
    train=TrainConfig(steps=4, global_batch=4, micro_batch=2, learning_rate=1e-3, checkpoint_every_steps=2),
)


RECENT_STEPS = 20
"""Result.train_loss is the mean over so many last steps."""


def run(params: Params, ctx: Context) -> Result:
    """Train to the last step, going on from the newest whole checkpoint under this train-key.

    Raises:
        UserError: sizes that do not fit together, or another run holds the lease.
        RejectedError: the model diverged.
        PreemptedError: told to stop; a checkpoint is saved.
        TemporaryError: the gang failed in a way that another attempt may survive.
    """
    if ctx.env.get("TRIPOD_TRAIN_TARGET") == "kubernetes":
        from steps.train.cluster import launch as launch_on_cluster

        return launch_on_cluster(params, ctx)
    from steps.lib import checkpoint
    from steps.train.preflight import check_sizes, check_vocabulary
    from steps.train.runtime import read_runtime

    _check_key(ctx)
    runtime = read_runtime(ctx.env)
    check_sizes(params.train, runtime.ranks)
    eos_id = check_vocabulary(ctx.store, params)
    base = f"checkpoints/{ctx.key[:16]}"
    last = checkpoint.prefix_of(base, params.train.steps)
    if checkpoint.problem_with(ctx.store, last):
        from steps.lib.dataset import check_shards
        from steps.train.job import Job
        from steps.train.launch import launch

        if runtime.node_rank == 0:
            check_shards(ctx.store, params.dataset, "train", ctx.say)
        launch(Job(params=params, store_uri=ctx.store.uri, base=base, eos_id=eos_id, runtime=runtime), ctx)
    meta = checkpoint.read_meta(ctx.store, last)
    return Result(
        checkpoint=last,
        step=meta.step,
        train_loss=_mean(meta.recent_losses, last),
        num_tokens=meta.samples * params.model.sequence_length,
    )


def _check_key(ctx: Context) -> None:
    """In a pod: whether the result goes where the launcher looks for it."""
    wanted = ctx.env.get("TRIPOD_TRAIN_KEY", "")
    if wanted and wanted != ctx.key:
        raise UserError(
            f"train-key: this pod's is {ctx.key[:16]}, its launcher's {wanted[:16]}: other sources or other library versions; "
            "run the launcher in the image of the pods (TRIPOD_IMAGE_TRAIN)"
        )


def _mean(losses: tuple[float | None, ...], prefix: str) -> float:
    finite = [loss for loss in losses if loss is not None]
    if not finite:
        raise RejectedError(f"{prefix}: no loss of the last {RECENT_STEPS} steps is a finite number")
    return sum(finite) / len(finite)
