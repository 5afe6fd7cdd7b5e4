"""Checkpoints on the store: what they are, which there are, and the model in one.

    <prefix>/rank-00000.bin ...   the tensors that one rank holds, back to back
    <prefix>/index.json           which bytes are which part of which tensor
    <prefix>/manifest.json        last (steps.lib.folder): its existence means that the checkpoint is whole

Names in the index are `model/<transformers' name>`, `exp_avg/<name>`, `exp_avg_sq/<name>` and `rng/<rank>`.
Nothing is pickled: the index is JSON, the objects are raw little-endian numbers. Each part carries a
CRC-32; parts are read whole, and checked. steps.lib.dcp writes and reads these under
torch.distributed.checkpoint; this module needs no process group, and torch only to load.
"""

import zlib
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.lib import folder
from steps.lib.errors import UserError
from steps.lib.llama import ModelConfig
from steps.lib.store import NotFoundError, Store

if TYPE_CHECKING:
    import torch

KIND = "checkpoint"
INDEX = "index.json"
MODEL = "model/"
"""Names of model tensors in the index begin with this."""


class CheckpointMeta(BaseModel):
    """What a checkpoint says of itself (the manifest's meta)."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    step: int
    """Optimizer steps done."""
    model: ModelConfig
    train: dict[str, Any]
    """steps.train.TrainConfig as JSON."""
    dataset: str
    """Prefix of the dataset trained on."""
    eos_id: int
    world_size: int
    """Ranks that wrote it."""
    samples: int
    """Position in the sample stream: everything before it is used."""
    optimizer_steps: int
    """Steps that were applied: `step` less those skipped for gradients that were not finite."""
    recent_losses: tuple[float | None, ...] = ()
    """Of the last 20 steps, nats a token; None where it was not a finite number."""
    metrics: tuple[str, ...] = ()
    """Keys of the parts of the metrics log that lead to this checkpoint, in order."""


class Part(BaseModel):
    """Where one rectangle of a tensor is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int
    crc32: int


class Entry(BaseModel):
    """One tensor of the index."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


class Index(BaseModel):
    """What index.json holds: tensor name -> Entry."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensors: dict[str, Entry]


def read_meta(store: Store, prefix: str) -> CheckpointMeta:
    """What the committed checkpoint at `prefix` says of itself.

    Raises:
        UserError: there is no checkpoint, or what it says cannot be read.
    """
    try:
        return CheckpointMeta.model_validate(folder.load(store, prefix, KIND).meta)
    except ValidationError as e:
        raise UserError(f"{prefix}/{folder.MANIFEST}: unreadable, {e.errors()[0]['msg']}; {folder.AGAIN}") from e


def read_index(store: Store, prefix: str) -> Index:
    """The index of the checkpoint at `prefix`.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return Index.model_validate_json(store.get(f"{prefix}/{INDEX}"))
    except NotFoundError as e:
        raise UserError(f"{prefix}/{INDEX} is missing") from e
    except ValidationError as e:
        raise UserError(f"{prefix}/{INDEX}: unreadable, {e.errors()[0]['msg']}; {folder.AGAIN}") from e


def load_model_state(store: Store, prefix: str) -> "dict[str, torch.Tensor]":
    """The whole model on this process (CPU), by transformers' names, as `load_state_dict(strict=True)` takes it.

    Tied weights are one tensor under both names.

    Raises:
        UserError: no such checkpoint, or its bytes differ from what was written.
    """
    meta = read_meta(store, prefix)
    entries = read_index(store, prefix).tensors
    state = {
        name.removeprefix(MODEL): _read_tensor(store, prefix, name, entry)
        for name, entry in entries.items()
        if name.startswith(MODEL)
    }
    if meta.model.tie_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return state


def _read_tensor(store: Store, prefix: str, name: str, entry: Entry) -> "torch.Tensor":
    import torch

    tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
    for part in entry.parts:
        if part.length:
            data = store.read(f"{prefix}/{part.file}", part.start, part.length)
            verify(data, part, prefix, name)
            narrow(tensor, part.offsets, part.sizes).copy_(as_tensor(data, entry.dtype, part.sizes))
    return tensor


def prefix_of(base: str, step: int) -> str:
    """Where the checkpoint of `step` is, below `base` (checkpoints/<train-key>)."""
    return f"{base}/step-{step}"


def committed_steps(store: Store, base: str) -> list[int]:
    """Steps below `base` that have a manifest, newest first."""
    return sorted((step for step, committed in _steps(store, base).items() if committed), reverse=True)


def _steps(store: Store, base: str) -> dict[int, bool]:
    """Every step below `base` of which something is there, and whether it is committed."""
    steps: dict[int, bool] = {}
    for head in store.list(base):
        name, _, file = head.key.removeprefix(f"{base}/").partition("/")
        number = name.removeprefix("step-")
        if file and name.startswith("step-") and number.isdecimal():
            steps[int(number)] = steps.get(int(number), False) or file == folder.MANIFEST
    return steps


def problem_with(store: Store, prefix: str) -> str:
    """Why the checkpoint at `prefix` cannot be used, in one line; "" when it looks whole.

    Raises:
        TemporaryError: the store is out of reach, which says nothing about the checkpoint.
    """
    try:
        folder.load(store, prefix, KIND)
    except UserError as e:
        return str(e)
    return folder.check(store, prefix)


def prune(store: Store, base: str, *, newest: int, keep: int) -> list[int]:
    """Remove checkpoints older than the committed step `newest`, save the `keep` - 1 before it.

    What a save that was killed has left before `newest` goes too. Later steps are none of its business:
    they are on their way, or leftovers that a save will replace.

    Returns:
        The steps removed. The manifest goes first, so that none is ever seen half removed.
    """
    older = {step: committed for step, committed in _steps(store, base).items() if step < newest}
    kept = sorted((step for step, committed in older.items() if committed), reverse=True)[: keep - 1]
    gone = sorted(older.keys() - set(kept), reverse=True)
    for step in gone:
        clear(store, prefix_of(base, step))
    return gone


def clear(store: Store, prefix: str) -> None:
    """Remove everything below `prefix`, the manifest first."""
    keys = [head.key for head in store.list(prefix)]
    manifest = f"{prefix}/{folder.MANIFEST}"
    if manifest in keys:
        store.delete([manifest])
    store.delete([key for key in keys if key != manifest])


def as_tensor(data: memoryview, dtype: str, sizes: tuple[int, ...]) -> "torch.Tensor":
    """`data` seen as a tensor; never written to, so a read-only buffer is copied first."""
    import torch

    writable = bytearray(data) if data.readonly else data
    return torch.frombuffer(writable, dtype=getattr(torch, dtype)).reshape(sizes)


def narrow(tensor: "torch.Tensor", offsets: tuple[int, ...], sizes: tuple[int, ...]) -> "torch.Tensor":
    """The rectangle of `tensor` at `offsets` with `sizes`."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def verify(data: memoryview, part: Part, prefix: str, name: str) -> None:
    """Compare the bytes of a whole part with its CRC-32.

    Raises:
        UserError: they differ.
    """
    if zlib.crc32(data) != part.crc32:
        raise UserError(f"{prefix}/{part.file}: {name} at byte {part.start} differs from what was written")
