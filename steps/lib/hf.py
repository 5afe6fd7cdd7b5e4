"""Model folders as transformers reads and writes them, on local disk. Nothing here touches a network.

ids [batch, tokens] int64 -> logits [batch, tokens, vocabulary] float
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.lib.errors import TripodError, UserError

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

MAX_SHARD = "4GB"
"""Weights above this are written as several files and an index."""
_NEEDED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def missing_files(names: Iterable[str]) -> list[str]:
    """What a model folder with these files lacks, in the order to say it."""
    have = set(names)
    lacks = [name for name in _NEEDED if name not in have]
    return lacks if any(name.endswith(".safetensors") for name in have) else [*lacks, "model.safetensors"]


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer in `folder`, by transformers.

    Raises:
        UserError: files are missing or cannot be read.
    """
    lacks = [name for name in ("tokenizer.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if lacks:
        raise UserError(f"tokenizer: missing {', '.join(lacks)}; a tokenizer folder needs both")
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as e:
        raise UserError(f"tokenizer: transformers cannot read it: {e}") from e


def max_id(tokenizer: Any) -> int:
    """Largest id that the tokenizer may give, added tokens included."""
    return int(max(tokenizer.get_vocab().values()))


def limit_threads(env: Mapping[str, str]) -> None:
    """Use $TRIPOD_THREADS threads, when set: on cores that others use too, more threads spin for each other."""
    import torch

    if threads := env.get("TRIPOD_THREADS"):
        torch.set_num_threads(int(threads))


def fill(model: "LlamaForCausalLM", state: "dict[str, torch.Tensor]") -> None:
    """Put `state` into `model`, every name and shape as the model has it.

    Raises:
        UserError: names or shapes differ, tied weights differ, or a value is not finite.
    """
    import torch

    expected = model.state_dict()
    lacks, extra = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
    if lacks or extra:
        raise UserError(
            f"weights: {_count(lacks)} missing, {_count(extra)} unknown to the model; "
            "the checkpoint is of another model"
        )
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape:
            raise UserError(f"weights: {name} is {list(tensor.shape)}, the model has {list(expected[name].shape)}")
        if not torch.isfinite(tensor).all():
            raise UserError(f"weights: {name} has values that are not finite; take an earlier checkpoint")
    if model.config.tie_word_embeddings and not torch.equal(
        state["lm_head.weight"], state["model.embed_tokens.weight"]
    ):
        raise UserError(
            "weights: model.tie_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight"
        )
    model.load_state_dict(state, strict=True)


def round_weights(model: "LlamaForCausalLM", dtype: str) -> None:
    """Round the parameters to `dtype`; buffers (the rotary frequencies) stay as they are, as in a model that is loaded."""
    import torch

    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))


def write(model: "LlamaForCausalLM", folder: Path, *, eos_id: int, pad_id: int | None) -> None:
    """Write weights, config.json and generation_config.json; the same model gives the same bytes.

    They name the major version of transformers alone: that is what a reader has to understand, and what
    wrote them besides is no part of a model.
    """
    from safetensors import SafetensorError
    from transformers import GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.config.use_cache = True
    model.config.eos_token_id, model.config.pad_token_id = eos_id, pad_id
    settings: Any = GenerationConfig  # it has no types
    model.generation_config = settings(eos_token_id=eos_id, pad_token_id=pad_id)
    try:
        model.save_pretrained(folder, max_shard_size=MAX_SHARD)
    except SafetensorError as e:
        _, found, number = str(e).rpartition("(os error ")
        if not found:
            raise
        code = int(number.partition(")")[0])
        raise OSError(code, os.strerror(code), str(folder)) from e
    for path in (folder / "config.json", folder / "generation_config.json"):
        about = json.loads(path.read_text())
        about["transformers_version"] = f"{about['transformers_version'].partition('.')[0]}.0.0"
        path.write_text(json.dumps(about, indent=2, sort_keys=True) + "\n")


def compare(model: "LlamaForCausalLM", folder: Path) -> None:
    """Load the folder as any user would and compare the logits bit by bit.

    Raises:
        TripodError: what was written is not the model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    load: Any = AutoModelForCausalLM.from_pretrained
    again, info = load(
        folder, dtype="auto", output_loading_info=True, local_files_only=True, attn_implementation="sdpa"
    )
    wrong = {kind: sorted(names) for kind, names in info.items() if names}
    if wrong:
        raise TripodError(f"export: loading the written model found {wrong}")
    length = min(16, model.config.max_position_embeddings)
    ids = (torch.arange(2 * length) * 7919).remainder(model.config.vocab_size).reshape(2, length)
    with torch.inference_mode():
        ours, theirs = (m.eval()(input_ids=ids, use_cache=False).logits for m in (model, again))
    if not torch.equal(ours, theirs):
        apart = (ours.float() - theirs.float()).abs().max().item()
        raise TripodError(f"export: logits of the written model differ from the checkpoint's by up to {apart:g}")


def generate(model: "LlamaForCausalLM", ids: list[int], *, max_new_tokens: int, eos_id: int) -> list[int]:
    """Greedy continuation of `ids`, without them; ends with `eos_id` or after `max_new_tokens`."""
    import torch
    from transformers import GenerationConfig

    settings: Any = GenerationConfig  # it has no types
    how = settings(
        max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=eos_id, pad_token_id=eos_id, use_cache=True
    )
    inputs = torch.tensor([ids], device=model.device)
    anything: Any = model
    with torch.inference_mode():
        output = anything.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=how)
    return [int(i) for i in output[0, len(ids) :]]


def _count(names: list[str]) -> str:
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})" if names else "0"
