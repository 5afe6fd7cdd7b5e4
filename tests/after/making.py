"""Small tokenizers, datasets, checkpoints and models in a store, made by hand."""

import json
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from steps.lib import folder, llama
from steps.lib.digest import sha256_hex
from steps.lib.store import Store

TEXT = [
    "def add(a, b):\n    return a + b\n",
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n",
    "for i in range(10):\n    print(i)\n",
    "import os\n\nif os.path.exists('a'):\n    raise ValueError('é is there')\n",
]
EOS = "<|endoftext|>"
CONFIG = llama.ModelConfig(
    num_layers=1, hidden_size=64, intermediate_size=64, num_heads=2, num_kv_heads=1, sequence_length=32, vocab_size=300
)


def tokenizer_files(vocab_size: int = 300, *, eos: str = EOS) -> dict[str, bytes]:
    """A byte-level BPE tokenizer as a Hugging Face folder; EOS has id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    with tempfile.TemporaryDirectory() as local:
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos).save_pretrained(local)
        return {path.name: path.read_bytes() for path in Path(local).iterdir()}


def publish_tokenizer(store: Store, prefix: str = "tokenizers/t", files: dict[str, bytes] | None = None) -> str:
    """The tokenizer as a folder of the store. Returns its prefix."""
    folder.publish(store, prefix, kind="tokenizer", content=files or tokenizer_files())
    return prefix


def random_model(config: llama.ModelConfig = CONFIG, *, seed: int = 0, eos_id: int = 0) -> LlamaForCausalLM:
    """A model with random weights, larger than at the start of training, so that its answers differ."""
    torch.manual_seed(seed)
    model = llama.build(config, eos_id=eos_id).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return model


def publish_checkpoint(
    store: Store,
    model: LlamaForCausalLM,
    config: llama.ModelConfig = CONFIG,
    *,
    prefix: str = "checkpoints/k/step-4",
    dataset: str = "datasets/d/v1",
    precision: str = "float32",
    eos_id: int = 0,
) -> str:
    """The model as one rank would have written it (steps.lib.checkpoint). Returns its prefix."""
    index, data = {}, bytearray()
    for name, parameter in model.named_parameters():  # tied weights once
        raw = parameter.detach().numpy().tobytes()
        shape = list(parameter.shape)
        part = {
            "offsets": [0] * len(shape),
            "sizes": shape,
            "file": "rank-00000.bin",
            "start": len(data),
            "length": len(raw),
            "crc32": zlib.crc32(raw),
        }
        index[f"model/{name}"] = {"dtype": "float32", "shape": shape, "parts": [part]}
        data += raw
    meta = {
        "step": 4,
        "model": config.model_dump(mode="json"),
        "train": {"precision": precision},
        "dataset": dataset,
        "eos_id": eos_id,
        "world_size": 1,
        "samples": 16,
        "optimizer_steps": 4,
    }
    files = []
    for name, content in {"index.json": json.dumps({"tensors": index}).encode(), "rank-00000.bin": bytes(data)}.items():
        key = f"{prefix}/{name}"
        store.upload(key, content)
        files.append(folder.File(name=name, key=key, size=len(content), sha256=sha256_hex(content)))
    folder.publish(store, prefix, kind="checkpoint", files=files, meta=meta)
    return prefix


def encode(texts: list[str]) -> list[int]:
    """The ids of the texts, each ended by EOS, by the tokenizer of `tokenizer_files`."""
    tokenizer = Tokenizer.from_str(tokenizer_files()["tokenizer.json"].decode())
    return [i for text in texts for i in [*tokenizer.encode(text, add_special_tokens=False).ids, 0]]


def publish_dataset(
    store: Store,
    splits: dict[str, list[list[int]]] | None = None,
    *,
    prefix: str = "datasets/d/v1",
    tokenizer: str = "",
    vocab_size: int = 300,
    eos_id: int = 0,
) -> str:
    """A dataset with the shards of each split; its tokenizer too, unless one is named. Returns its prefix."""
    splits = splits or {"train": [encode(TEXT[:2]), encode(TEXT[2:])], "heldout": [encode(TEXT)]}
    shards = [(split, i, np.array(ids, "<u2")) for split, parts in splits.items() for i, ids in enumerate(parts)]
    files = []
    for split, i, ids in shards:
        meta = {"split": split, "num_tokens": len(ids), "num_documents": int((ids == eos_id).sum()), "values_offset": 3}
        blob = folder.put_blob(store, b"abc" + ids.tobytes())
        files.append(blob.model_copy(update={"name": f"{split}-{i}", "meta": meta}))
    meta = {
        "version": "0" * 64,
        "tokenizer": tokenizer or publish_tokenizer(store),
        "vocab_size": vocab_size,
        "eos_id": eos_id,
        "dtype": "uint16",
        "num_tokens": {split: sum(map(len, parts)) for split, parts in splits.items()},
    }
    folder.publish(store, prefix, kind="dataset", files=files, meta=meta)
    return prefix


def decode(ids: list[int]) -> str:
    """The text of `ids`, by the same tokenizer."""
    return Tokenizer.from_str(tokenizer_files()["tokenizer.json"].decode()).decode(ids)
