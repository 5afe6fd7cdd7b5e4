"""A checkpoint -> its held-out loss and completions, judged by a gate.

    __init__.py   the contract, and run: measure, report, judge
    score.py      loss, bytes and completions of the model
    bigram.py     the smoothed bigram model that it must beat
    gate.py       the comparisons, in which NaN, infinity and a missing number fail

bits_per_byte = loss x judged tokens / ln 2 / UTF-8 bytes that those tokens spell.
"""

import math
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from steps.contract import BlobRef, Context, Params as BaseParams, Result as BaseResult, Step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import LlamaForCausalLM

    from steps.lib.checkpoint import CheckpointMeta
    from steps.lib.folder import Manifest


class Gate(BaseModel):
    """What a model must reach. A value that is not a finite number fails."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_loss: float = Field(gt=0)
    """Held-out loss, nats a token; at most."""
    beats: Literal["nothing", "bigram"] = "nothing"
    """bigram: the loss must also be below a smoothed bigram model's, counted on the training split."""
    prompts: tuple[str, ...] = ()
    """Completed greedily by the model; kept in the report."""
    expect_any: tuple[str, ...] = ()
    """A completion passes when it contains one of these as a whole word."""
    min_passing: int = Field(0, ge=0)
    """So many completions must pass."""
    max_new_tokens: int = Field(48, ge=1)

    @model_validator(mode="after")
    def _can_pass(self) -> "Gate":
        most = len(self.prompts) if self.expect_any else 0
        if self.min_passing > most:
            raise ValueError(
                f"min_passing is {self.min_passing}, allowed is at most {most}: there are {len(self.prompts)} prompts "
                f"and {len(self.expect_any)} words in expect_any"
            )
        return self


class Params(BaseParams):
    """What to judge by what."""

    checkpoint: str
    dataset: str
    gate: Gate
    max_tokens: int = Field(2_000_000, ge=1)
    """Judge on at most this many held-out tokens, from the start of the split."""


class Result(BaseResult):
    """The numbers; the report has the raw completions too."""

    loss: float
    """Nats a token, held-out split."""
    bits_per_byte: float
    """Held-out loss a byte of text: comparable across tokenizers."""
    baseline_loss: float
    """Of the baseline that the gate names on the same tokens; 0 when it names none."""
    report: BlobRef
    """JSON: gate, numbers, prompts and raw completions."""


step = Step(image="train", timeout=timedelta(hours=2), cpus=2, memory_gib=4, libraries=("torch", "transformers"))

EXAMPLE = Params(
    checkpoint="checkpoints/example/step-4",
    dataset="datasets/example/v1",
    gate=Gate(max_loss=100.0, prompts=("def ",), max_new_tokens=4),
)


def run(params: Params, ctx: Context) -> Result:
    """Evaluate on the held-out split.

    Raises:
        UserError: checkpoint and dataset do not fit together, or nothing is held out.
        RejectedError: the gate said no; the message has each number and its limit, and where the report is.
    """
    from steps.evaluate import gate, score
    from steps.lib import checkpoint, folder
    from steps.lib.errors import RejectedError

    meta = checkpoint.read_meta(ctx.store, params.checkpoint)
    dataset = folder.load(ctx.store, params.dataset, "dataset")
    _check(meta, dataset, params)
    model, tokenizer = _load(params, ctx, meta, dataset)
    numbers = _measure(model, tokenizer, params, ctx, meta)
    how = {"max_new_tokens": params.gate.max_new_tokens, "eos_id": meta.eos_id}
    completions = [score.complete(model, tokenizer, prompt, **how) for prompt in params.gate.prompts]
    failed = gate.judge(params.gate, numbers, completions)
    report = _report(params, ctx, numbers, completions, failed)
    if failed:
        raise RejectedError(f"gate: {'; '.join(failed)}; report {report}")
    return Result(
        loss=numbers["loss"],
        bits_per_byte=numbers["bits_per_byte"],
        baseline_loss=numbers["baseline_loss"],
        report=report,
    )


def _load(params: Params, ctx: Context, meta: "CheckpointMeta", dataset: "Manifest") -> "tuple[LlamaForCausalLM, Any]":
    """The model on the place's device, and the tokenizer."""
    import torch

    from steps.evaluate.score import device_of
    from steps.lib import checkpoint, folder, hf, llama

    folder.download(ctx.store, dataset.meta["tokenizer"], ctx.scratch / "tokenizer", "tokenizer")
    hf.limit_threads(ctx.env)
    with torch.device(device_of(ctx.env)):
        model = llama.build(meta.model, eos_id=meta.eos_id)
    model.load_state_dict(checkpoint.load_model_state(ctx.store, params.checkpoint), strict=True)
    model.train(False)
    return model, hf.load_tokenizer(ctx.scratch / "tokenizer")


def _measure(
    model: "LlamaForCausalLM", tokenizer: Any, params: Params, ctx: Context, meta: "CheckpointMeta"
) -> dict[str, Any]:
    """Every number that the gate or the report wants."""
    from steps.evaluate import score

    tokens = _held_out(params, ctx)
    num_tokens, num_bytes = len(tokens) - 1, score.text_bytes(tokenizer, tokens[1:])
    loss = score.loss(model, tokens, meta.model.sequence_length)
    ctx.say(f"held-out loss {loss:.4f} nats a token over {num_tokens} tokens")
    numbers: dict[str, Any] = {
        "loss": loss,
        "bits_per_byte": loss * num_tokens / math.log(2) / num_bytes if num_bytes else math.inf,
        "baseline_loss": 0.0,
        "num_tokens": num_tokens,
        "num_bytes": num_bytes,
    }
    if params.gate.beats == "bigram":
        numbers |= _baseline(tokens, params, ctx, meta.model.vocab_size)
        ctx.say(f"bigram model {numbers['baseline_loss']:.4f} nats a token")
    return numbers


def _check(meta: "CheckpointMeta", dataset: "Manifest", params: Params) -> None:
    from steps.lib.errors import UserError

    if dataset.meta["vocab_size"] > meta.model.vocab_size:
        raise UserError(
            f"{params.dataset}: max id {dataset.meta['vocab_size'] - 1}, the model of {params.checkpoint} has "
            f"{meta.model.vocab_size} rows; evaluate on a dataset of the model's own tokenizer"
        )
    if dataset.meta["eos_id"] != meta.eos_id:
        raise UserError(
            f"{params.dataset}: documents end with id {dataset.meta['eos_id']}, {params.checkpoint} was trained with "
            f"{meta.eos_id}; evaluate on a dataset of the model's own tokenizer"
        )


def _held_out(params: Params, ctx: Context) -> "NDArray[np.integer]":
    """[n] The tokens to judge and the one before them."""
    import numpy as np

    from steps.lib.errors import UserError

    pieces, room = [], params.max_tokens + 1
    for piece in _stream(params, ctx, "heldout"):
        pieces.append(piece[:room])
        room -= len(pieces[-1])
        if room == 0:
            break
    tokens = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
    if len(tokens) < 2:
        raise UserError(f"{params.dataset}: {len(tokens)} tokens held out; ingest with a larger data.holdout_fraction")
    return tokens


def _stream(params: Params, ctx: Context, split: str) -> "Iterator[NDArray[np.integer]]":
    """The tokens of a split in order, in arrays of bounded length; its shards are checked first."""
    from steps.lib.dataset import check_shards
    from steps.lib.loader import Loader

    check_shards(ctx.store, params.dataset, split, ctx.say)
    return Loader(ctx.store, params.dataset, sequence_length=1, seed=0, window_mib=1, split=split).stream()


def _baseline(tokens: "NDArray[np.integer]", params: Params, ctx: Context, vocab_size: int) -> dict[str, Any]:
    from steps.evaluate import bigram

    counts = bigram.count(_stream(params, ctx, "train"), tokens[:-1], tokens[1:], vocab_size)
    loss, strength = bigram.best_loss(counts)
    return {"baseline_loss": loss, "baseline_strength": strength, "baseline_tokens": counts.num_tokens}


def _report(params: Params, ctx: Context, numbers: dict[str, Any], completions: list[str], failed: list[str]) -> str:
    """Put the report into the store, passed or not. Returns its key."""
    import json

    from steps.evaluate.gate import is_finite, passes
    from steps.lib.folder import put_blob

    pairs = zip(params.gate.prompts, completions, strict=True)
    report = {
        "checkpoint": params.checkpoint,
        "dataset": params.dataset,
        "passed": not failed,
        "failed": failed,
        "numbers": {name: value if is_finite(value) else repr(value) for name, value in numbers.items()},
        "gate": params.gate.model_dump(mode="json"),
        "completions": [
            {"prompt": prompt, "completion": text, "passes": passes(text, params.gate.expect_any)}
            for prompt, text in pairs
        ],
    }
    return put_blob(ctx.store, json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False).encode()).key
