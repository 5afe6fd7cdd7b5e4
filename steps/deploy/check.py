"""What is refused before anything starts: a broken model, or more than it can."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from steps.contract import Context
from steps.deploy import Params
from steps.lib import folder, hf
from steps.lib.errors import UserError
from steps.lib.folder import Manifest

_TOLD = ("bytes", "chat_template", "context_length", "digest", "dtype", "eos_id")
"""What the manifest of a model says of it."""
_CONFIGURED = ("hidden_size", "num_attention_heads", "num_hidden_layers", "transformers_version")
"""What its config.json says."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that can be served, as its files tell of it."""

    digest: str
    num_bytes: int
    """Of the weights."""
    dtype: str
    eos_id: int
    has_chat_template: bool
    config: dict[str, Any]
    """Its config.json."""


def check(params: Params, ctx: Context) -> Model:
    """What is known of the model.

    Raises:
        UserError: it cannot be served, or not as it is asked for.
    """
    if problem := folder.check(ctx.store, params.model):
        raise UserError(f"{params.model} is broken: {problem}; export it again")
    model = folder.load(ctx.store, params.model, "model")
    if lacks := hf.missing_files(file.name for file in model.files):
        raise UserError(f"{params.model}: lacks {', '.join(lacks)}; export it again")
    if unsaid := [name for name in _TOLD if name not in model.meta]:
        raise UserError(f"{params.model}/{folder.MANIFEST}: says no {', '.join(unsaid)}; export it again")
    limit = model.meta["context_length"]
    if params.max_model_len > limit:
        raise UserError(f"max_model_len: got {params.max_model_len}, {params.model} allows at most {limit}")
    if params.max_tokens >= params.max_model_len:
        raise UserError(
            f"max_tokens: got {params.max_tokens}, allowed is less than max_model_len, {params.max_model_len}"
        )
    config, here = _config(ctx, model), version("transformers")
    needs = config["transformers_version"].partition(".")[0]
    if int(here.partition(".")[0]) < int(needs):
        raise UserError(
            f"{params.model}: written for transformers {needs}, the server has {here}; "
            f"serve with transformers {needs} or newer"
        )
    return Model(
        digest=model.meta["digest"],
        num_bytes=model.meta["bytes"],
        dtype=model.meta["dtype"],
        eos_id=model.meta["eos_id"],
        has_chat_template=bool(model.meta["chat_template"]),
        config=config,
    )


def _config(ctx: Context, model: Manifest) -> dict[str, Any]:
    """config.json. Raises UserError when it is damaged, or lacks what serving goes by."""
    key = next(file.key for file in model.files if file.name == "config.json")
    data = ctx.store.get(key)
    try:
        config = dict(json.loads(data))
    except (ValueError, TypeError) as e:
        raise UserError(f"{key}: damaged: {e}; export the model again") from e
    if lacks := [name for name in _CONFIGURED if name not in config]:
        raise UserError(f"{key}: lacks {', '.join(lacks)}; export the model again")
    return config
