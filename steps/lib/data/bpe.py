"""Train a byte-level BPE tokenizer, and write it as a Hugging Face folder.

The first entry is the end-of-text token, then the 256 bytes, then merges. The same texts in the
same order give the same bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from steps.lib.data.encode import describe
from steps.lib.digest import canonical_json, digest_of, sha256_hex
from steps.lib.folder import publish
from steps.lib.store import Store

END_OF_TEXT = "<|endoftext|>"
_MAX_RUN_BYTES = 4096
_PIECE_CHARS = 200
_MAX_CUT_CHARS = 1 << 16
"""A document with a run of over _MAX_RUN_BYTES with or without white space gives training its first
_MAX_CUT_CHARS, in pieces: the trainer's time grows with the square of a word's length. Encoding
knows no such limit.
"""
_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END_OF_TEXT,
    "add_prefix_space": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 1 << 30,
}


def train(texts: Iterable[str], vocab_size: int) -> str:
    """tokenizer.json of a byte-level BPE with at most `vocab_size` entries, trained on `texts`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in _pieces(text)), trainer)
    return tokenizer.to_str()


def sample(batches: Iterable[Any], total_bytes: int, sample_bytes: int) -> Iterator[str]:
    """About `sample_bytes` of text at most, taken evenly over the documents in their order.

    Args:
        batches: Arrow string arrays, `total_bytes` of UTF-8 together.
    """
    share = min(sample_bytes / max(total_bytes, 1), 1.0)
    seen = taken = 0
    for batch in batches:
        chosen = []
        for row, size in enumerate(pc.binary_length(batch).to_pylist()):
            seen += size
            if share == 1.0 or taken + size <= share * seen:
                taken += size
                chosen.append(row)
        yield from batch.take(pa.array(chosen, pa.int64())).to_pylist()


def _pieces(text: str) -> Iterable[str]:
    """`text` itself, or pieces of it where a word would be very long."""
    if len(text) <= _PIECE_CHARS:
        return (text,)
    is_space = np.frombuffer(text.encode(), np.uint8) <= ord(" ")
    changes = np.flatnonzero(is_space[1:] != is_space[:-1])
    longest = np.diff(changes, prepend=-1, append=len(is_space) - 1).max()
    if longest <= _MAX_RUN_BYTES:
        return (text,)
    return (text[start : start + _PIECE_CHARS] for start in range(0, min(len(text), _MAX_CUT_CHARS), _PIECE_CHARS))


def publish_tokenizer(store: Store, tokenizer_json: str) -> tuple[str, dict[str, Any]]:
    """Publish as tokenizers/<version>, loadable by transformers.

    Returns:
        The folder's prefix and its meta (encode.describe).
    """
    content = {
        "tokenizer.json": tokenizer_json.encode(),
        "tokenizer_config.json": canonical_json(_CONFIG),
    }
    meta = describe(tokenizer_json, END_OF_TEXT)
    version = digest_of({"meta": meta, **{name: sha256_hex(data) for name, data in content.items()}})
    prefix = f"tokenizers/{version[:16]}"
    publish(store, prefix, kind="tokenizer", content=content, meta=meta)
    return prefix, meta
