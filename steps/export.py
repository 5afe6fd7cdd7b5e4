"""A checkpoint -> a model folder that transformers and vLLM load.

    models/<name>/<version>/    model.safetensors (or shards and an index), config.json,
                                generation_config.json, and the tokenizer's files as they are

version = the first 16 digits of sha256 over the digests of all files; the same checkpoint gives the
same bytes, whatever exports it: the versions of the libraries are beside the folder (steps.lib.registry). Weights are float32, or bfloat16 when the training multiplied in bfloat16: rounded so,
they are what every matrix product of the training has seen.
"""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step

if TYPE_CHECKING:
    from steps.lib.checkpoint import CheckpointMeta


class Params(BaseParams):
    """What to export, under which name."""

    checkpoint: str
    dataset: str
    """Names the tokenizer that goes with the model."""
    name: str
    """models/<name>/<version>."""


class Result(BaseResult):
    """The model folder."""

    model: FolderRef
    digest: str
    """Of weights, config and tokenizer: 64 hex characters; the first 16 are the version."""
    num_parameters: int


step = Step(
    image="train", timeout=timedelta(hours=2), cpus=2, memory_gib=8, libraries=("torch", "transformers", "safetensors")
)

EXAMPLE = Params(checkpoint="checkpoints/example/step-4", dataset="datasets/example/v1", name="example")


def run(params: Params, ctx: Context) -> Result:
    """Write safetensors, config, generation settings and tokenizer; reload them and compare the logits.

    Raises:
        UserError: the tokenizer does not fit the model, stop tokens disagree, or files are missing.
    """
    from importlib.metadata import version

    from steps.lib import checkpoint, folder, hf, llama, registry

    hf.limit_threads(ctx.env)
    meta = checkpoint.read_meta(ctx.store, params.checkpoint)
    dataset = folder.load(ctx.store, params.dataset, "dataset")
    local = ctx.scratch / "model"
    folder.download(ctx.store, dataset.meta["tokenizer"], local, "tokenizer")
    tokenizer = hf.load_tokenizer(local)
    _check_tokenizer(tokenizer, meta, int(dataset.meta["eos_id"]))

    model = llama.build(meta.model, eos_id=meta.eos_id)
    hf.fill(model, checkpoint.load_model_state(ctx.store, params.checkpoint))
    dtype = meta.train["precision"]
    hf.round_weights(model, dtype)
    pad_id = tokenizer.pad_token_id
    hf.write(model, local, eos_id=meta.eos_id, pad_id=None if pad_id == meta.eos_id else pad_id)
    hf.compare(model, local)
    ctx.say(f"{params.checkpoint}: written, reloaded by transformers, logits are equal")

    content = _files(local)
    digest = _digest(content)
    about = {
        "digest": digest,
        "model": meta.model.model_dump(mode="json"),
        "dtype": dtype,
        "context_length": meta.model.sequence_length,
        "eos_id": meta.eos_id,
        "chat_template": bool(tokenizer.chat_template),
        "bytes": sum(path.stat().st_size for path in content.values()),
        "num_parameters": sum(p.numel() for p in model.parameters()),
    }
    prefix = f"models/{params.name}/{digest[:16]}"
    registry.write_versions(ctx.store, prefix, {library: version(library) for library in step.libraries})
    folder.publish(ctx.store, prefix, kind="model", content=content, meta=about)
    return Result(model=prefix, digest=digest, num_parameters=about["num_parameters"])


def _check_tokenizer(tokenizer: Any, meta: "CheckpointMeta", eos_id: int) -> None:
    from steps.lib.errors import UserError
    from steps.lib.hf import max_id

    largest = max_id(tokenizer)
    if largest >= meta.model.vocab_size:
        raise UserError(
            f"tokenizer: max id {largest}, model has {meta.model.vocab_size} rows; "
            f"train with model.vocab_size {largest + 1} or more"
        )
    ends = {"checkpoint": meta.eos_id, "dataset": eos_id, "tokenizer": tokenizer.eos_token_id}
    if len(set(ends.values())) != 1:
        said = ", ".join(f"{where} {end}" for where, end in ends.items())
        raise UserError(f"stop token: ids disagree: {said}; export with the tokenizer that the model was trained with")


def _files(local: Path) -> dict[str, Path]:
    """All files by name. Raises UserError naming every one that is missing."""
    from steps.lib.errors import UserError
    from steps.lib.hf import missing_files

    content = {path.relative_to(local).as_posix(): path for path in sorted(local.rglob("*")) if path.is_file()}
    if lacks := missing_files(content):
        raise UserError(f"export: the model folder lacks {', '.join(lacks)}")
    return content


def _digest(content: dict[str, Path]) -> str:
    from steps.lib.digest import digest_of
    from steps.lib.folder import sha256_file

    return digest_of({name: sha256_file(path) for name, path in content.items()})
