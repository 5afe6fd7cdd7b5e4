"""torch.distributed.checkpoint (DCP) on our store: a StorageWriter and a StorageReader.

The layout is in steps.lib.checkpoint. One writer or reader serves one dcp.save or dcp.load:

    dcp.save(state, storage_writer=StoreWriter(store, prefix, meta), process_group=group)
    dcp.load(state, storage_reader=StoreReader(store, prefix, index), process_group=group)
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from steps.lib import folder
from steps.lib.checkpoint import (
    INDEX,
    KIND,
    CheckpointMeta,
    Entry,
    Index,
    Part,
    as_tensor,
    clear,
    narrow,
    verify,
)
from steps.lib.digest import canonical_json, sha256_hex
from steps.lib.errors import Exit, TripodError
from steps.lib.store import Store

if TYPE_CHECKING:
    from os import PathLike

_READ_BYTES = 256 << 20
"""At most about this much is fetched at a time."""


class _Written(NamedTuple):
    """What `write_data` reports of one item: its bytes, and the file that they are in."""

    start: int
    length: int
    crc32: int
    file: folder.File


class LostRanksError(TripodError):
    """Ranks are missing from a save. Unlike a store that is away, they do not come back."""

    code = Exit.TEMPORARY


class StoreWriter(StorageWriter):
    """Writes one checkpoint below a prefix of the store and commits it.

    Args:
        meta: what the manifest will say.
        before_commit: called on the coordinator when all bytes are written, before the manifest.
    """

    def __init__(
        self, store: Store, prefix: str, meta: CheckpointMeta, before_commit: Callable[[], None] = lambda: None
    ):
        self.store = store
        self.prefix = prefix
        self.meta = meta
        self.before_commit = before_commit

    def reset(self, checkpoint_id: "str | PathLike[str] | None" = None) -> None:
        """A writer is made for one save; nothing to do."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing is contacted yet."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator, before anyone writes: clear what a killed attempt left, name the files.

        Raises:
            LostRanksError: not every rank takes part. DCP saves one rank alone, without a word, when the
                process group is gone: when another thread leaves the gang because it failed.
        """
        if len(plans) != self.meta.world_size:
            raise LostRanksError(f"{len(plans)} of {self.meta.world_size} ranks take part in the save")
        clear(self.store, self.prefix)
        return [replace(plan, storage_data=f"rank-{rank:05d}.bin") for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Upload this rank's tensors as one object."""
        tensors = [cast(torch.Tensor, planner.resolve_data(item)) for item in plan.items]
        data = _back_to_back(tensors)
        file = self._upload(plan.storage_data, data)
        results, start = [], 0
        for item, tensor in zip(plan.items, tensors, strict=True):
            length = tensor.nbytes
            written = _Written(start, length, zlib.crc32(data[start : start + length]), file)
            results.append(WriteResult(index=item.index, size_in_bytes=length, storage_data=written))
            start += length
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _upload(self, name: str, data: memoryview) -> folder.File:
        key = f"{self.prefix}/{name}"
        if data.nbytes:
            self.store.upload(key, data)
        return folder.File(name=name, key=key, size=data.nbytes, sha256=sha256_hex(data))

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator, when everyone has written: index, then manifest."""
        written = {r.index: cast(_Written, r.storage_data) for rank in results for r in rank}
        tensors = {
            name: _entry(name, cast(TensorStorageMetadata, tensor), written)
            for name, tensor in sorted(metadata.state_dict_metadata.items())
        }
        files = {w.file.name: w.file for w in written.values() if w.file.size}
        self.before_commit()
        index = self._upload(INDEX, memoryview(canonical_json(Index(tensors=tensors).model_dump(mode="json"))))
        folder.publish(
            self.store,
            self.prefix,
            kind=KIND,
            files=[*(files[name] for name in sorted(files)), index],
            meta=self.meta.model_dump(mode="json"),
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | PathLike[str]") -> bool:
        """Checkpoints are named by store and prefix, not by an id."""
        return False

    def storage_meta(self) -> StorageMeta | None:
        """None: the index says it all."""
        return None


def _entry(name: str, tensor: TensorStorageMetadata, written: dict[MetadataIndex, _Written]) -> Entry:
    parts = []
    for chunk in tensor.chunks:
        w = written[MetadataIndex(name, chunk.offsets)]
        parts.append(
            Part(
                offsets=tuple(chunk.offsets),
                sizes=tuple(chunk.sizes),
                file=w.file.name,
                start=w.start,
                length=w.length,
                crc32=w.crc32,
            )
        )
    return Entry(dtype=_dtype_name(tensor.properties.dtype), shape=tuple(tensor.size), parts=tuple(parts))


def _back_to_back(tensors: Sequence[torch.Tensor]) -> memoryview:
    """The bytes of CPU tensors in order: where they lie when they are neighbours in memory, else a copy."""
    filled = [t for t in tensors if t.nbytes]
    if not filled:
        return memoryview(b"")
    expected = filled[0].data_ptr()
    for t in filled:
        if t.data_ptr() != expected or not t.is_contiguous():
            return _bytes_of(torch.cat([t.contiguous().flatten().view(torch.uint8) for t in filled]))
        expected += t.nbytes
    first = filled[0]
    whole = torch.empty(0, dtype=torch.uint8).set_(
        first.untyped_storage(), first.storage_offset() * first.element_size(), (sum(t.nbytes for t in filled),), (1,)
    )
    return _bytes_of(whole)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(cast(Any, tensor.numpy())).cast("B")


class StoreReader(StorageReader):
    """Reads the checkpoint below a prefix of the store into whatever sharding the reader has.

    Args:
        index: of that checkpoint (steps.lib.checkpoint.read_index): read by one rank, handed to all.
    """

    def __init__(self, store: Store, prefix: str, index: Index):
        self.store = store
        self.prefix = prefix
        self.index = index
        self.parts: dict[MetadataIndex, Part] = {}
        self.dtypes: dict[str, str] = {}

    def reset(self, checkpoint_id: "str | PathLike[str] | None" = None) -> None:
        """A reader is made for one load; nothing to do."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index in DCP's terms."""
        entries = self.index.tensors
        return Metadata(
            state_dict_metadata={name: _tensor_metadata(entry) for name, entry in entries.items()},
            storage_data={
                MetadataIndex(name, torch.Size(part.offsets)): (part, entry.dtype)
                for name, entry in entries.items()
                for part in entry.parts
            },
        )

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Keep where everything is."""
        for index, (part, dtype) in metadata.storage_data.items():
            self.parts[index] = part
            self.dtypes[index.fqn] = dtype

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fetch what this rank needs, by ranges, and copy it into place.

        Raises:
            UserError: bytes differ from what was written.
        """
        by_file: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            part = self.parts[item.storage_index]
            if part.length and prod(item.lengths):
                by_file[part.file].append(item)
        for file, items in sorted(by_file.items()):
            for batch in self._batches(items):
                self._read_batch(file, batch, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _batches(self, items: Iterable[ReadItem]) -> Iterator[list[ReadItem]]:
        """Items of about _READ_BYTES together, in the order of the file; those that want the same part side by side."""
        batch: list[ReadItem] = []
        size = 0
        for item in sorted(items, key=lambda i: self.parts[i.storage_index].start):
            part = self.parts[item.storage_index]
            if batch and part == self.parts[batch[-1].storage_index]:
                batch.append(item)
                continue
            if size >= _READ_BYTES:
                yield batch
                batch, size = [], 0
            batch.append(item)
            size += part.length
        if batch:
            yield batch

    def _read_batch(self, file: str, items: list[ReadItem], planner: LoadPlanner) -> None:
        """Parts are read whole, also where another world size wants some rows only: only whole ones can be checked."""
        parts = {self.parts[item.storage_index].start: item.storage_index for item in items}
        ranges = [(start, self.parts[index].length) for start, index in parts.items()]
        datas = self.store.read_ranges(f"{self.prefix}/{file}", ranges)
        tensors = {}
        for (start, index), data in zip(parts.items(), datas, strict=True):
            part = self.parts[index]
            verify(data, part, self.prefix, index.fqn)
            tensors[start] = as_tensor(data, self.dtypes[index.fqn], tuple(part.sizes))
        for item in items:
            tensor = tensors[self.parts[item.storage_index].start]
            target = planner.resolve_tensor(item).detach()
            target.copy_(narrow(tensor, tuple(item.storage_offsets), tuple(item.lengths)))
            planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: "str | PathLike[str]") -> bool:
        """Checkpoints are named by store and prefix, not by an id."""
        return False


def _tensor_metadata(entry: Entry) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, entry.dtype)),
        size=torch.Size(entry.shape),
        chunks=[ChunkStorageMetadata(torch.Size(p.offsets), torch.Size(p.sizes)) for p in entry.parts],
    )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
