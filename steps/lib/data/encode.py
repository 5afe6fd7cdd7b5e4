"""Text -> token ids: fastokens behind a parity check, else tokenizers.

Text is text: a special token's literal in a document is encoded as ordinary characters. The fast
encoder is used only where it gave the ids of `tokenizers` on a fixed set of hard texts and on a
sample of the data; the manifest says which of the two wrote the ids.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import fastokens
import numpy as np
import numpy.typing as npt
import tokenizers

from steps.lib.digest import digest_of
from steps.lib.errors import UserError

Ids = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]
"""ids [t] of all texts, one after the other, and offsets [n + 1]: text i is ids[offsets[i] : offsets[i + 1]]."""
_BATCH_CHARS = 4 << 20
"""The slow encoder keeps some 200 bytes a token: only so many characters at a time."""
_HARD_TEXTS = (
    *("", " ", "  \n\t \r\n\n   x", "\n" * 300, " " * 300, "a" * 3000, "0123456789" * 40, "1,234.56e-7 0x1F"),
    *("don't I'LL we've it's'S", "''\"\"``--__==//\\\\", "def f(x):\n    return x**2\n\n\tif y:\r\n"),
    *("\u00c0\u00c9\u00ce\u00f5\u00fc \u00df \u017f \u0130 \u0131 \ufb01", "e\u0301 a\u0300\u0316 \u0958 \u1e9b\u0323"),
    *("\ufeffx\u200b\u00a0\u2028\u3000y", "\x00\x01\x7f\x85\ufffd\U0010fffd", "ab\u0301c" * 200),
    *("👍🏽👩\u200d👩\u200d👧\u200d👦🇩🇪", "日本語 한국어 ไทย العربية עברית हिन्दी", "aGVsbG8gd29ybGQ=" * 30),
)


@dataclass(frozen=True)
class Encoder:
    """How texts become ids."""

    name: str
    """Library and version."""
    encode: Callable[[Sequence[str]], Ids]


def describe(tokenizer_json: str, eos_token: str) -> dict[str, Any]:
    """What the product has to know of a tokenizer: the meta of its folder.

    Returns:
        digest (of the parsed tokenizer.json), vocab_size (largest id + 1, added tokens included),
        eos_token, eos_id.

    Raises:
        UserError: `eos_token` is no entry.
    """
    entries = tokenizers.Tokenizer.from_str(tokenizer_json).get_vocab(with_added_tokens=True)
    if eos_token not in entries:
        raise UserError(f"tokenizer: end-of-text token {eos_token!r} is none of its {len(entries)} entries")
    return {
        "digest": digest_of(json.loads(tokenizer_json)),
        "vocab_size": max(entries.values()) + 1,
        "eos_token": eos_token,
        "eos_id": entries[eos_token],
    }


def open_encoder(tokenizer_json: str, sample: Sequence[str]) -> Encoder:
    """The fast encoder when it passes on hard texts and on `sample`, else the reference."""
    reference = _reference(tokenizer_json)
    fast = _fast(tokenizer_json)
    if fast and agree(fast.encode, reference.encode, [*hard_texts(tokenizer_json), *sample]):
        return fast
    return reference


def agree(one: Callable[[Sequence[str]], Ids], other: Callable[[Sequence[str]], Ids], texts: Sequence[str]) -> bool:
    """Whether both give the same ids for every text."""
    (ids, offsets), (other_ids, other_offsets) = one(texts), other(texts)
    return np.array_equal(ids, other_ids) and np.array_equal(offsets, other_offsets)


def hard_texts(tokenizer_json: str) -> list[str]:
    """Texts that encoders are known to differ on, with the tokenizer's own added tokens among them."""
    added = [entry["content"] for entry in json.loads(tokenizer_json).get("added_tokens", [])][:64]
    marks = ["<|endoftext|>", "<|im_end|>", "</s>", "[PAD]", *added]
    return [*_HARD_TEXTS, *marks, *(f"a{mark}b {mark} {mark}{mark}" for mark in marks)]


def sample_of(texts: Sequence[str], *, most: int = 128, chars: int = 4000) -> list[str]:
    """Beginnings of documents spread evenly over `texts`, and the first one longer."""
    step = max(1, len(texts) // most)
    return [text[:chars] for text in texts[::step]] + [text[:200_000] for text in texts[:1]]


def _fast(tokenizer_json: str) -> Encoder | None:
    try:
        tokenizer = fastokens.Tokenizer.from_json_str(tokenizer_json)
    except ValueError:  # a kind of tokenizer that it does not know
        return None
    tokenizer.no_truncation()

    def encode(texts: Sequence[str]) -> Ids:
        ids, offsets = tokenizer.encode_batch_flat(list(texts), split_special_tokens=True)
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)

    return Encoder(f"fastokens {version('fastokens')}", encode)


def _reference(tokenizer_json: str) -> Encoder:
    tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # its way to say: literals of special tokens are text

    def encode(texts: Sequence[str]) -> Ids:
        found = [
            np.array(encoding.ids, np.uint32)
            for batch in _batches(texts)
            for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        ]
        offsets = np.cumsum([0, *(len(ids) for ids in found)], dtype=np.int64)
        return np.concatenate([np.empty(0, np.uint32), *found]), offsets

    return Encoder(f"tokenizers {version('tokenizers')}", encode)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and chars + len(text) > _BATCH_CHARS:
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch
