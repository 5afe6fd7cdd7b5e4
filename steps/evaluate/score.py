"""What a model does with held-out tokens and with prompts.

B = windows side by side, L = sequence length, H = hidden size, V = vocabulary
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from steps.lib.errors import UserError
from steps.lib.hf import generate

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import LlamaForCausalLM

_BATCH_TOKENS = 2048
_MAX_LOGITS = 1 << 24
"""B x L x V is cut into pieces of this many, 64 MiB as float32."""


def device_of(env: Mapping[str, str]) -> str:
    """$TRIPOD_DEVICE, else a GPU when there is one."""
    import torch

    return env.get("TRIPOD_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def loss(model: "LlamaForCausalLM", tokens: "NDArray[np.integer]", length: int) -> float:
    """Mean nats a token of `tokens[1:]`, each predicted within its window of `length` tokens.

    Windows do not overlap: inputs tokens[i L : (i + 1) L], targets one further; the last is shorter.

    Args:
        tokens: [n] at least 2.
    """
    import torch

    total = 0.0
    with torch.inference_mode():
        for inputs, targets in _windows(torch.as_tensor(tokens.astype("int64")), length):
            hidden = model.model(input_ids=inputs.to(model.device), use_cache=False).last_hidden_state  # [B, L, H]
            total += _nats(model, hidden.flatten(0, 1), targets.to(model.device).flatten())
    return total / (len(tokens) - 1)


def complete(model: "LlamaForCausalLM", tokenizer: Any, prompt: str, *, max_new_tokens: int, eos_id: int) -> str:
    """The greedy completion of `prompt`, raw, the prompt not included; ends at the stop token or the context's end.

    Raises:
        UserError: the prompt fills the model's context.
    """
    ids = tokenizer.encode(prompt, add_special_tokens=False) or [eos_id]
    room = model.config.max_position_embeddings - len(ids)
    if room < 1:
        raise UserError(
            f"gate.prompts: {prompt[:40]!r} has {len(ids)} tokens, the model's context "
            f"of {model.config.max_position_embeddings} leaves no room for an answer"
        )
    answer = generate(model, ids, max_new_tokens=min(max_new_tokens, room), eos_id=eos_id)
    text: str = tokenizer.decode(answer, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


def text_bytes(tokenizer: Any, tokens: "NDArray[np.integer]") -> int:
    """Bytes of UTF-8 that `tokens` spell; special tokens spell none."""
    text: str = tokenizer.decode(tokens.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return len(text.encode())


def _windows(tokens: "torch.Tensor", length: int) -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
    """[n] -> inputs [B, L] and targets [B, L]; the last pair is [1, rest]."""
    count = (len(tokens) - 1) // length
    side_by_side = max(1, _BATCH_TOKENS // length)
    inputs, targets = tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(count, length)
    for first in range(0, count, side_by_side):
        yield inputs[first : first + side_by_side], targets[first : first + side_by_side]
    rest = tokens[count * length :]
    if len(rest) > 1:
        yield rest[None, :-1], rest[None, 1:]


def _nats(model: "LlamaForCausalLM", hidden: "torch.Tensor", targets: "torch.Tensor") -> float:
    """Sum of -ln P(target): hidden [B L, H], targets [B L]."""
    from torch.nn.functional import cross_entropy

    piece = max(1, _MAX_LOGITS // model.config.vocab_size)
    total = 0.0
    for first in range(0, len(targets), piece):
        logits = model.lm_head(hidden[first : first + piece]).float()  # [piece, V]
        total += float(cross_entropy(logits, targets[first : first + piece], reduction="sum"))
    return total
