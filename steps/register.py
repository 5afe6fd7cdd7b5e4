"""A model folder -> the registry: card, lineage, and the aliases latest and champion.

Nothing inside the model's folder changes; steps.lib.registry says where the rest is. Lineage and
card come first, then the aliases: whoever finds a model by its alias finds its lineage.
"""

import math
from datetime import timedelta
from typing import Any

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """The model and where it comes from."""

    name: str
    model: str
    checkpoint: str
    dataset: str
    docs: str
    report: str
    """What evaluate found."""
    loss: float
    bits_per_byte: float


class Result(BaseResult):
    """What the registry says now."""

    model: FolderRef
    champion: bool
    """Whether this version is the champion: the first, or better in bits a byte than the one before."""


step = Step(image="data", timeout=timedelta(minutes=10), cached=False)

EXAMPLE = Params(
    name="example",
    model="models/example/v1",
    checkpoint="checkpoints/example/step-4",
    dataset="datasets/example/v1",
    docs="docs/example",
    report="blobs/sha256/example",
    loss=1.0,
    bits_per_byte=1.0,
)


def run(params: Params, ctx: Context) -> Result:
    """Write lineage and card beside the model and move the aliases by compare-and-swap; idempotent.

    Raises:
        UserError: a folder is missing or of another kind, or the model has another name.
    """
    import json

    from steps.lib import registry

    about = _lineage(params, ctx)
    name, version = registry.split(params.model)
    ctx.store.put(registry.lineage_key(name, version), json.dumps(about, indent=1, sort_keys=True).encode())
    ctx.store.put(registry.card_key(name, version), _card(about).encode())
    _point_latest(params, ctx)
    champion, why = _crown(params, ctx)
    ctx.say(f"{params.model}: registered; champion: {'yes' if champion else 'no'}, {why}")
    return Result(model=params.model, champion=champion)


def _lineage(params: Params, ctx: Context) -> dict[str, Any]:
    """From the raw files to the model, each with what names its content."""
    from steps.lib import folder, registry
    from steps.lib.errors import UserError

    name, version = registry.split(params.model)
    if name != params.name:
        raise UserError(f"model: got {params.model}, expected models/{params.name}/<version>")
    kinds = {"docs": params.docs, "dataset": params.dataset, "checkpoint": params.checkpoint, "model": params.model}
    folders = {kind: folder.load(ctx.store, prefix, kind) for kind, prefix in kinds.items()}
    parts = {
        kind: {"key": kinds[kind], "manifest_sha256": there.digest, **there.meta} for kind, there in folders.items()
    }
    parts["model"]["versions"] = registry.read_versions(ctx.store, params.model)
    evaluation = {"report": params.report, "loss": params.loss, "bits_per_byte": params.bits_per_byte}
    return {"name": name, "version": version, **parts, "evaluation": evaluation}


def _point_latest(params: Params, ctx: Context) -> None:
    from steps.lib import registry
    from steps.lib.pointer import move
    from steps.lib.store import ConflictError

    while True:
        try:
            move(ctx.store, registry.alias_key(params.name, registry.LATEST), params.model, by=ctx.run_id)
            return
        except ConflictError:
            continue  # another model came first: this one is later


def _crown(params: Params, ctx: Context) -> tuple[bool, str]:
    """Move the alias champion here if it is nowhere, or names a worse model. Whether it is here now, and why."""
    from steps.lib import registry
    from steps.lib.pointer import move, read
    from steps.lib.store import ConflictError

    key = registry.alias_key(params.name, registry.CHAMPION)
    if not math.isfinite(params.bits_per_byte):
        return False, f"bits_per_byte {params.bits_per_byte} is no number to win with"
    while True:
        now = read(ctx.store, key)
        if now == params.model:
            return True, "as before"
        best = registry.bits_per_byte(ctx.store, now) if now else math.inf
        if not params.bits_per_byte < best:
            return False, f"{now} has {best:.4f} bits a byte, this one {params.bits_per_byte:.4f}"
        try:
            move(ctx.store, key, params.model, expected=now, by=ctx.run_id)
        except ConflictError:
            continue  # another model was crowned meanwhile: compare with that one
        return True, f"{params.bits_per_byte:.4f} bits a byte" + (f", {now} has {best:.4f}" if now else ", the first")


def _card(about: dict[str, Any]) -> str:
    """The lineage for people, Markdown."""
    model, checkpoint, dataset, docs = (about[part] for part in ("model", "checkpoint", "dataset", "docs"))
    evaluation = about["evaluation"]
    architecture = ", ".join(f"{name} {value}" for name, value in model["model"].items())
    counts = ", ".join(f"{count} {split}" for split, count in dataset["num_tokens"].items())
    return f"""# {about["name"]} {about["version"]}

| | |
|---|---|
| parameters | {model["num_parameters"]:,} ({model["dtype"]}, {model["bytes"]:,} bytes) |
| architecture | Llama: {architecture} |
| context | {model["context_length"]} tokens |
| held-out loss | {evaluation["loss"]:.4f} nats a token |
| bits a byte | {evaluation["bits_per_byte"]:.4f} |
| digest | {model["digest"]} |
| written by | {", ".join(f"{name} {version}" for name, version in model["versions"].items()) or "unknown"} |

## Where it comes from

| | | |
|---|---|---|
| documents | `{docs["key"]}` | {docs["documents"]} |
| dataset | `{dataset["key"]}` | {counts} tokens, version {dataset["version"]} |
| checkpoint | `{checkpoint["key"]}` | step {checkpoint["step"]} |
| model | `{model["key"]}` | |
| evaluation | `{evaluation["report"]}` | |

## Use

    python -m pipelines.deploy run --model {about["name"]} --version {about["version"]}
"""
