"""Saving and going on, on one rank, with stores that fail and checkpoints that are broken."""

import errno
import json
import math
import threading
import time
import zlib
from collections.abc import Callable

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

from steps.lib import checkpoint, folder
from steps.lib.dcp import StoreReader
from steps.lib.errors import TemporaryError, UserError
from steps.lib.llama import build
from steps.lib.store import Bytes, Store
from steps.lib.store.file import FileStore
from steps.train import metrics, state
from steps.train.loop import Loop
from tests.train.conftest import BASE, Trainer
from tests.train.trainings import tiny

Rule = Callable[[str], None]


class FaultyStore(FileStore):
    """A folder whose uploads first ask `rule`, which may raise or wait."""

    def __init__(self, uri: str, rule: Rule):
        super().__init__(uri)
        self.rule = rule

    def upload(self, key: str, source: "Bytes | object") -> int:
        self.rule(key)
        return super().upload(key, source)  # type: ignore[arg-type]


def step_prefix(step: int) -> str:
    return checkpoint.prefix_of(BASE, step)


def losses(store: Store) -> list[float]:
    return [line["loss"] for line in metrics.read(store, BASE)]


@pytest.mark.parametrize("tie_embeddings", [True, False])
def test_model_loads_into_transformers_without_a_gang(tie_embeddings: bool, make_loop: Trainer, store: Store) -> None:
    params = tiny(tie_embeddings=tie_embeddings, activation_checkpointing="full", compile=False)
    loop = make_loop(params)
    loop.run()
    loaded = checkpoint.load_model_state(store, step_prefix(8))
    model = build(params.model)
    assert set(loaded) == set(model.state_dict())
    model.load_state_dict(loaded, strict=True)
    for name, parameter in loop.training.parameters.items():
        assert torch.equal(model.get_parameter(name), parameter.full_tensor()), name
    assert (loaded["lm_head.weight"] is loaded["model.embed_tokens.weight"]) == tie_embeddings
    meta = checkpoint.read_meta(store, step_prefix(8))
    assert (meta.step, meta.samples, meta.world_size, meta.model) == (8, 64, 1, params.model)


def test_a_save_at_step_0_with_gradients_set(make_loop: Trainer, store: Store) -> None:
    """The optimizer's state is whole before the first step, and gradients do not matter."""
    params = tiny(dropout=0.1, steps=3, checkpoint_every_steps=3)
    loop = make_loop(params)
    loop._save("checkpointing")
    loop.saver.settle()
    assert loop.run()
    expected = losses(store)
    checkpoint.clear(store, step_prefix(3))

    entries = checkpoint.read_index(store, step_prefix(0)).tensors
    assert {name.partition("/")[0] for name in entries} == {"model", "exp_avg", "exp_avg_sq", "rng"}
    resumed = make_loop(params)
    assert resumed.saver.saved_step == 0
    resumed._backward(torch.zeros(2, 33, dtype=torch.int64))
    resumed._save("checkpointing")
    resumed.saver.settle()
    resumed = make_loop(params)
    assert all(not m.full_tensor().any() for m in resumed_moments(resumed))
    state.seed_rng(11, 0, 0)
    assert resumed.run()
    assert losses(store) == expected


def resumed_moments(loop: Loop) -> list:
    return [s["exp_avg"] for s in loop.training.optimizer.state.values()]


BREAKS = {
    "object missing": "rank-00000.bin is missing",
    "object cut": "its manifest says",
    "byte flipped": "differs from what was written",
    "index unreadable": "index.json",
    "index missing": "index.json is missing",
    "manifest unreadable": "manifest.json: unreadable",
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_newest_checkpoint_is_named_and_skipped(
    how: str, make_loop: Trainer, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    params = tiny(dropout=0.1, steps=12)
    make_loop(params).run()
    expected = losses(store)
    break_checkpoint(store, step_prefix(12), how)
    loop = make_loop(params)
    said = capfd.readouterr().err
    assert f"checkpoint {step_prefix(12)} is skipped: " in said
    assert BREAKS[how] in said
    assert loop.training.step == 8
    loop.run()
    assert losses(store) == expected
    assert folder.check(store, step_prefix(12), full=True) == "", "saved anew"


def break_checkpoint(store: Store, prefix: str, how: str) -> None:
    key = f"{prefix}/rank-00000.bin"
    data = bytearray(store.get(key))
    if how == "object missing":
        store.delete([key])
    elif how == "object cut":
        store.put(key, data[:-100])
    elif how == "byte flipped":
        data[1000] ^= 1
        store.put(key, data)
    elif how == "index missing":
        store.delete([f"{prefix}/index.json"])
    elif how == "index unreadable":
        size = store.head(f"{prefix}/index.json").size
        store.put(f"{prefix}/index.json", b"{" * size)
    else:
        store.put(f"{prefix}/manifest.json", b"{")


def test_a_save_that_not_every_rank_takes_part_in_is_not_committed(make_loop: Trainer, store: Store) -> None:
    """DCP falls back to one process when the group is gone: seen when the reader of stderr was killed."""
    loop = make_loop(tiny())
    meta = loop._meta(None).model_copy(update={"step": 3, "world_size": 2})
    loop.saver.start(loop._state(), meta, None)
    loop.saver.settle()
    assert loop.saver.failed_in_a_row == 1
    assert checkpoint.committed_steps(store, BASE) == []


def test_a_checkpoint_without_every_ranks_part_is_skipped(
    make_loop: Trainer, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    make_loop(tiny()).run()
    key = f"{step_prefix(8)}/manifest.json"
    manifest = json.loads(store.get(key))
    manifest["meta"]["world_size"] = 2
    store.put(key, json.dumps(manifest).encode())
    assert make_loop(tiny()).training.step == 4
    assert f"checkpoint {step_prefix(8)} is skipped: its index lacks rng/1" in capfd.readouterr().err


def test_all_broken_starts_from_the_seed(make_loop: Trainer, store: Store) -> None:
    make_loop(tiny()).run()
    expected = losses(store)
    for step in (4, 8):
        break_checkpoint(store, step_prefix(step), "byte flipped")
    loop = make_loop(tiny())
    assert loop.training.step == 0
    loop.run()
    assert losses(store) == expected


def test_a_store_that_is_away_is_not_a_broken_checkpoint(make_loop: Trainer, store: Store) -> None:
    make_loop(tiny()).run()

    class Away(FileStore):
        def read_ranges(self, key, ranges):
            raise TemporaryError(f"read {key}: the store is away")

    with pytest.raises(TemporaryError, match="the store is away"):
        make_loop(tiny(), on=Away(store.uri))


def test_failed_saves_are_tolerated_up_to_the_limit(
    make_loop: Trainer, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    params = tiny(steps=16, max_failed_saves=2)
    make_loop(params).run()
    expected = losses(store)
    for step in checkpoint.committed_steps(store, BASE):
        checkpoint.clear(store, step_prefix(step))

    def twice(key: str) -> None:
        if "step-4/rank" in key or "step-8/rank" in key:
            raise OSError(errno.ENOSPC, "No space left on device", key)

    assert make_loop(params, on=FaultyStore(store.uri, twice)).run()
    said = capfd.readouterr().err
    assert f"warning: checkpoint {step_prefix(4)} was not saved: rank 0: [Errno 28] No space" in said
    assert checkpoint.committed_steps(store, BASE) == [16, 12]
    assert losses(store) == expected, "the metrics of unsaved stretches came with the next save"


def test_too_many_failed_saves_end_the_training(make_loop: Trainer, store: Store) -> None:
    def always(key: str) -> None:
        if "/rank-" in key:
            raise TemporaryError(f"upload {key}: the store is away")

    loop = make_loop(tiny(steps=100, max_failed_saves=2), on=FaultyStore(store.uri, always), wait_s=0)
    with pytest.raises(TemporaryError, match=r"the store is away; 3 saves in a row failed, allowed are 2"):
        loop.run()
    assert loop.training.step == 16, "noticed when the next save was due"
    assert checkpoint.committed_steps(store, BASE) == []


def test_an_outage_that_ended_in_another_failure_is_over(
    make_loop: Trainer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next save that finds the store away waits its whole time."""
    monkeypatch.setattr("steps.train.saver.POLL_S", 0.01)
    tries = {4: 0, 8: 0}

    def once_away_then_full(key: str) -> None:
        for step in tries:
            if f"{step_prefix(step)}/rank" in key:
                tries[step] += 1
                if tries[step] == 1:
                    raise TemporaryError(f"upload {key}: the store is away")
                if step == 4:
                    raise OSError(errno.ENOSPC, "No space left on device", key)

    loop = make_loop(tiny(steps=8, max_failed_saves=1), on=FaultyStore(store.uri, once_away_then_full), wait_s=3600)
    settle, since = loop.saver.settle, []

    def watched() -> None:
        settle()
        since.append(loop.saver.away_since)

    monkeypatch.setattr(loop.saver, "settle", watched)
    assert loop.run()
    assert checkpoint.committed_steps(store, BASE) == [8]
    assert set(since) == {math.inf}


class Outage:
    """The store is away from the first upload of a step on, until it `ends`."""

    def __init__(self, step: int):
        self.key = f"{step_prefix(step)}/rank"
        self.tries = 0
        self.ended = False

    def __call__(self, key: str) -> None:
        if self.key in key:
            self.tries += 1
            if not self.ended:
                raise TemporaryError(f"upload {key}: the store is away")


def test_a_store_that_is_away_costs_no_failed_save(
    make_loop: Trainer, store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Training goes on to the next save with the copy held; the save that waited is committed as it was."""
    monkeypatch.setattr("steps.train.saver.POLL_S", 0.01)
    params = tiny(steps=8, max_failed_saves=0)
    make_loop(params).run()
    expected = losses(store)
    wanted = {step: checkpoint.read_index(store, step_prefix(step)) for step in (4, 8)}
    for step in (4, 8):
        checkpoint.clear(store, step_prefix(step))
    outage = Outage(4)
    loop = make_loop(params, on=FaultyStore(store.uri, outage))
    settle, waited = loop.saver.settle, []

    def watched() -> None:
        if loop.training.step == 8 and not waited:  # the next save is due
            while outage.tries < 20:
                time.sleep(0.01)
            waited.append(loop.saver.waits)
            outage.ended = True
        settle()

    monkeypatch.setattr(loop.saver, "settle", watched)
    assert loop.run()
    assert waited == [True]
    assert checkpoint.committed_steps(store, BASE) == [8, 4]
    assert {step: checkpoint.read_index(store, step_prefix(step)) for step in (4, 8)} == wanted
    assert losses(store) == expected
    said = capfd.readouterr().err
    assert said.count(f"warning: {step_prefix(4)} waits for the store: rank 0: upload {step_prefix(4)}") == 1
    assert "was not saved" not in said
    assert loop.saver.away_since == math.inf


def test_who_is_told_to_stop_waits_for_no_store(
    make_loop: Trainer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steps.train.saver.POLL_S", 0.01)
    told: list[int] = []
    outage = Outage(4)
    loop = make_loop(
        tiny(max_failed_saves=0), on=FaultyStore(store.uri, outage), should_stop=lambda: bool(told), wait_s=3600
    )
    settle = loop.saver.settle

    def watched() -> None:
        if loop.training.step == 8 and not told:
            told.append(outage.tries)
        settle()

    loop.saver.settle = watched  # type: ignore[method-assign]
    with pytest.raises(TemporaryError, match=r"the store is away; 1 saves in a row failed, allowed are 0"):
        loop.run()
    assert outage.tries <= told[0] + 1


def test_training_goes_on_while_a_save_is_in_flight(make_loop: Trainer, store: Store) -> None:
    params = tiny(dropout=0.1, steps=8)
    make_loop(params).run()
    expected = losses(store)
    for step in (4, 8):
        checkpoint.clear(store, step_prefix(step))
    may_go_on = threading.Event()

    def wait(key: str) -> None:
        if "step-4/rank" in key:
            assert may_go_on.wait(30)

    loop = make_loop(params, on=FaultyStore(store.uri, wait))
    trained = loop._step

    def watched(ids, tokens) -> None:
        trained(ids, tokens)
        if loop.training.step == 7:  # three steps after the save began
            assert checkpoint.committed_steps(store, BASE) == []
            may_go_on.set()

    loop._step = watched
    assert loop.run()
    assert checkpoint.committed_steps(store, BASE) == [8, 4]
    checkpoint.clear(store, step_prefix(8))
    assert make_loop(params).run()
    assert losses(store) == expected, "step 4 was saved as it was, not as it became"


def test_a_killed_save_leaves_nothing_that_counts(make_loop: Trainer, store: Store) -> None:
    store.put(f"{step_prefix(8)}/rank-00007.bin", b"left by a save of eight ranks that was killed")
    store.put(f"{step_prefix(8)}/index.json", b"{}")
    assert make_loop(tiny()).run()
    names = {head.key.rpartition("/")[2] for head in store.list(step_prefix(8))}
    assert names == {"rank-00000.bin", "index.json", "manifest.json"}


@pytest.mark.parametrize(("keep", "left"), [(1, [20]), (2, [20, 16]), (9, [20, 16, 12, 8, 4])])
def test_prune_keeps_the_newest(keep: int, left: list[int], make_loop: Trainer, store: Store) -> None:
    make_loop(tiny(steps=20, keep_checkpoints=keep)).run()
    assert checkpoint.committed_steps(store, BASE) == left
    for step in {4, 8, 12, 16} - set(left):
        assert not list(store.list(step_prefix(step)))
    assert len(losses(store)) == 20, "the log outlives the checkpoints"


def test_prune_removes_what_killed_saves_have_left(make_loop: Trainer, store: Store) -> None:
    """Everything before the newest commit that is not committed; nothing later, and nothing of another key."""
    theirs = "checkpoints/other/step-3/rank-00000.bin"
    mine = [f"{step_prefix(step)}/rank-00000.bin" for step in (3, 7, 80)]
    for key in (theirs, *mine):
        store.put(key, b"half a save")
    make_loop(tiny(steps=8)).run()
    assert checkpoint.committed_steps(store, BASE) == [8, 4]
    left = [head.key for head in store.list("checkpoints") if head.key in (theirs, *mine)]
    assert left == [theirs, mine[-1]]


def test_prune_counts_only_what_is_older_than_the_commit(make_loop: Trainer, store: Store) -> None:
    """After a fall back to an older checkpoint, broken later ones must not push out the good ones."""
    params = tiny(steps=16, keep_checkpoints=9)
    make_loop(params).run()
    for step in (12, 16):
        break_checkpoint(store, step_prefix(step), "byte flipped")
    assert checkpoint.prune(store, BASE, newest=8, keep=1) == [4]
    assert checkpoint.committed_steps(store, BASE) == [16, 12, 8]


def test_generators_survive_the_checkpoint() -> None:
    import random

    import numpy as np

    state.seed_rng(1, 2, 3)
    packed = state.pack_rng(torch.device("cpu"))
    expected = (random.random(), np.random.rand(), float(torch.rand(())))
    state.seed_rng(4, 5, 6)
    assert (random.random(), np.random.rand(), float(torch.rand(()))) != expected
    state.unpack_rng(packed, torch.device("cpu"))
    assert (random.random(), np.random.rand(), float(torch.rand(()))) == expected


def test_broken_generator_state_is_an_error() -> None:
    states = json.loads(state.pack_rng(torch.device("cpu")).numpy().tobytes())
    for name in ("python", "numpy", "torch"):
        text = json.dumps({k: v for k, v in states.items() if k != name}).encode()
        packed = torch.frombuffer(bytearray(text.ljust(32 << 10)), dtype=torch.uint8)
        with pytest.raises(UserError, match="random number generators: cannot be restored"):
            state.unpack_rng(packed, torch.device("cpu"))


def test_the_gang_waits_while_the_store_gives_no_data(
    make_loop: Trainer, store: Store, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("steps.train.loop.POLL_S", 0.01)
    params = tiny(steps=30, checkpoint_every_steps=30)
    make_loop(params).run()
    expected = losses(store)
    checkpoint.clear(store, step_prefix(30))
    capfd.readouterr()
    away = iter([False] * 4 + [True] * 12)

    class ComesAndGoes(FileStore):
        def read_ranges(self, key, ranges):
            if next(away, False):
                raise TemporaryError(f"read {key}: the store is away")
            return super().read_ranges(key, ranges)

    assert make_loop(params, on=ComesAndGoes(store.uri)).run()
    said = capfd.readouterr().err
    assert next(away, "all used") == "all used"
    assert "warning: rank 0 waits: read blobs/sha256/" in said
    assert "phase=waiting" in said
    assert losses(store) == expected


def test_waiting_for_data_ends(make_loop: Trainer, store: Store) -> None:
    class Away(FileStore):
        def read_ranges(self, key, ranges):
            raise TemporaryError(f"read {key}: the store is away")

    with pytest.raises(TemporaryError, match=r"no data for 0 s: read .* the store is away"):
        make_loop(tiny(), on=Away(store.uri), wait_s=0).run()


class Rows:
    """A load planner that wants some rows of one tensor."""

    def __init__(self, rows: torch.Tensor):
        self.rows = rows

    def resolve_tensor(self, item: ReadItem) -> torch.Tensor:
        return self.rows

    def commit_tensor(self, item: ReadItem, tensor: torch.Tensor) -> None:
        pass


@pytest.mark.parametrize("broken", [None, 0, 3, 7])
def test_rows_for_another_world_size_are_checked_too(broken: int | None, store: Store) -> None:
    """A rank that wants rows 2 to 4 of a part of 8 finds any flipped byte of it."""
    whole = torch.arange(32, dtype=torch.float32).reshape(8, 4)
    data = bytearray(b"other" + whole.numpy().tobytes())
    part = checkpoint.Part(
        offsets=(0, 0), sizes=(8, 4), file="rank-00000.bin", start=5, length=128, crc32=zlib.crc32(data[5:])
    )
    if broken is not None:
        data[5 + broken * 16] ^= 1
    store.put(f"{BASE}/rank-00000.bin", bytes(data))
    index = checkpoint.Index(tensors={"w": checkpoint.Entry(dtype="float32", shape=(8, 4), parts=(part,))})
    reader = StoreReader(store, BASE, index)
    reader.set_up_storage_reader(reader.read_metadata(), True)
    wanted = MetadataIndex("w", torch.Size((0, 0)))
    item = ReadItem(
        type=LoadItemType.TENSOR,
        dest_index=wanted,
        dest_offsets=torch.Size((0, 0)),
        storage_index=wanted,
        storage_offsets=torch.Size((2, 1)),
        lengths=torch.Size((3, 2)),
    )
    rows = torch.zeros(3, 2)
    if broken is None:
        reader.read_data(LoadPlan([item]), Rows(rows))
        assert torch.equal(rows, whole[2:5, 1:3])
    else:
        with pytest.raises(UserError, match="differs from what was written"):
            reader.read_data(LoadPlan([item]), Rows(rows))
