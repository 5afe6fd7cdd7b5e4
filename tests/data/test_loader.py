"""The loader against a hand-made reference: every sample once an epoch, at any ranks (cases S01, R01)."""

import gc
import tempfile
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from steps.lib import loader as loader_module
from steps.lib.data.tokens import write_shard
from steps.lib.errors import TemporaryError, UserError
from steps.lib.folder import publish, put_blob
from steps.lib.loader import Loader
from steps.lib.store import open_store


def publish_shards(store, shards, *, dtype="uint16", split="train", prefix="datasets/d/v"):
    """A dataset of shards, each a list of documents (lists of ids); the tokens in order, by hand."""
    files = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, documents in enumerate(shards):
            tokens = np.concatenate([np.array(ids, dtype) for ids in documents])
            path = Path(scratch) / "shard"
            meta = {
                "split": split,
                "num_tokens": len(tokens),
                "num_documents": len(documents),
                "values_offset": write_shard(path, tokens, np.array([len(ids) for ids in documents])),
            }
            blob = put_blob(store, path)
            files.append(blob.model_copy(update={"name": f"{split}-{number:05d}.arrow", "meta": meta}))
    publish(store, prefix, kind="dataset", files=files, meta={"dtype": dtype, "eos_id": 0})
    return np.array([token for documents in shards for ids in documents for token in ids], np.int64)


def counting(num_tokens, shard_tokens):
    """Shards of one document each, tokens 0, 1, 2, ... so that a sample's content names it."""
    return [[list(range(start, min(start + shard_tokens, num_tokens)))] for start in range(0, num_tokens, shard_tokens)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 64 bytes, so that tiny datasets have many."""
    monkeypatch.setattr(loader_module, "BLOCK_BYTES", 64)


def steps_of(loader, *, start, count, global_batch, ranks):
    """Global batches put together from all ranks: (ids, tokens) for each step."""
    iterators = [
        loader.rank_batches(start_step=start, global_batch=global_batch, rank=rank, ranks=ranks)
        for rank in range(ranks)
    ]
    found = []
    for _ in range(count):
        parts = [next(iterator) for iterator in iterators]
        assert {ids.shape for ids, _ in parts} == {(global_batch // ranks,)}
        found.append(tuple(np.concatenate([part[i] for part in parts]) for i in (0, 1)))
    for iterator in iterators:
        iterator.close()
    return found


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_same_samples_at_any_ranks_and_interruptions(data):
    draw = data.draw
    lengths = draw(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=6))
    dtype = draw(st.sampled_from(["uint16", "uint32"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shards = [[rng.integers(0, 60_000, n).tolist() for n in documents] for documents in lengths]
    length = draw(st.integers(1, 12))
    seed, window_mib = draw(st.integers(-3, 2**40)), draw(st.sampled_from([1e-4, 3e-4, 1.0]))
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "BLOCK_BYTES", draw(st.sampled_from([16, 64, 1 << 20])))
        store = open_store(f"file://{root}")
        tokens = publish_shards(store, shards, dtype=dtype)
        loader = Loader(store, "datasets/d/v", sequence_length=length, seed=seed, window_mib=window_mib)
        samples = (len(tokens) - 1) // length
        assert (loader.num_samples, loader.num_tokens) == (samples, len(tokens))
        assert loader.leftover_tokens == len(tokens) - samples * length - 1
        ranks = draw(st.sampled_from([1, 2, 3, 4]))
        global_batch = ranks * draw(st.integers(1, 3))
        if samples < global_batch:
            with pytest.raises(UserError, match=f"has {samples} samples"):
                loader.rank_batches(start_step=0, global_batch=global_batch, rank=0, ranks=ranks)
            return
        count = draw(st.integers(1, 2 * samples // global_batch + 2))
        cut = draw(st.integers(0, count))
        straight = steps_of(loader, start=0, count=count, global_batch=global_batch, ranks=1)
        again = steps_of(loader, start=0, count=cut, global_batch=global_batch, ranks=ranks)
        again += steps_of(loader, start=cut, count=count - cut, global_batch=global_batch, ranks=ranks)
        for (ids, rows), (other_ids, other_rows) in zip(straight, again, strict=True):
            assert np.array_equal(ids, other_ids)
            assert np.array_equal(rows, other_rows)
            assert rows.dtype == ids.dtype == np.int64
            assert np.array_equal(rows, [tokens[i * length : i * length + length + 1] for i in ids])
        order = np.concatenate([ids for ids, _ in straight])
        assert np.array_equal(order, loader.ids(0, len(order)))
        for start in range(0, len(order) - samples + 1, samples):
            assert sorted(order[start : start + samples]) == list(range(samples)), "every sample once an epoch"
        assert np.array_equal(loader.read(order[:5]), [tokens[i * length : (i + 1) * length + 1] for i in order[:5]])
        assert np.array_equal(np.concatenate(list(loader.stream(7))), tokens)


def test_order_depends_on_seed_and_epoch_and_is_no_accident(store, small_blocks):
    publish_shards(store, counting(4001, 900))

    def order(seed):
        loader = Loader(store, "datasets/d/v", sequence_length=4, seed=seed, window_mib=0.001)
        return loader.ids(0, 2000)

    one = order(1)
    assert np.array_equal(one, order(1))
    assert not np.array_equal(one, order(2))
    assert not np.array_equal(one[:1000], one[1000:]), "epochs differ"
    for epoch in (one[:1000], one[1000:]):
        assert sorted(epoch) == list(range(1000))
        neighbours = (np.abs(np.diff(epoch)) == 1).mean()
        assert neighbours < 0.1
        assert abs(np.corrcoef(np.arange(1000), epoch)[0, 1]) < 0.2


def test_order_by_hand(store, small_blocks):
    """Blocks of 8 samples, windows of 16 blocks, each sorted by splitmix64, here with Python's whole numbers."""
    publish_shards(store, counting(1001 * 4 + 1, 900))
    loader = Loader(store, "datasets/d/v", sequence_length=4, seed=7, window_mib=0.001)

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    def mixed(numbers, epoch, stream):
        key = mix(mix(mix(7) ^ epoch) ^ stream)
        return sorted(numbers, key=lambda number: mix(number ^ key))

    expected = []
    for epoch in range(2):
        blocks = mixed(range(126), epoch, 0)  # 1001 samples: 125 blocks of 8 and one of 1
        for start in range(0, 126, 16):
            window = [8 * block + i for block in blocks[start : start + 16] for i in range(8)]
            expected += mixed([number for number in window if number < 1001], epoch, 1)
    assert loader.ids(0, 2002).tolist() == expected


def test_103_sequences_in_10_shards_on_4_ranks(store, small_blocks):
    """Equal steps on every rank, nothing twice; what is left over is reported."""
    publish_shards(store, counting(103 * 8 + 4, 83))
    loader = Loader(store, "datasets/d/v", sequence_length=8, seed=0, window_mib=0.001)
    assert (loader.num_samples, loader.leftover_tokens) == (103, 3)
    batches = [
        [ids for ids, _ in islice(loader.rank_batches(start_step=0, global_batch=8, rank=r, ranks=4), 12)]
        for r in range(4)
    ]
    seen = np.concatenate([ids for rank in batches for ids in rank])
    assert [len(rank) for rank in batches] == [12] * 4
    assert len(seen) == len(set(seen)) == 96


def test_fewer_shards_than_ranks_work_and_too_few_samples_are_refused(store, tmp_path):
    publish_shards(store, counting(33, 20))
    loader = Loader(store, "datasets/d/v", sequence_length=8, seed=0, window_mib=1)
    assert sorted(steps_of(loader, start=0, count=1, global_batch=4, ranks=4)[0][0]) == [0, 1, 2, 3]
    with pytest.raises(UserError, match="train has 4 samples of 8 tokens, 8 are needed"):
        loader.rank_batches(start_step=0, global_batch=8, rank=0, ranks=4)
    with pytest.raises(UserError, match="global_batch: got 4, allowed are multiples of the 3 ranks"):
        loader.rank_batches(start_step=0, global_batch=4, rank=0, ranks=3)
    with pytest.raises(UserError, match="holds no tokens of split 'heldout'"):
        Loader(store, "datasets/d/v", sequence_length=8, seed=0, window_mib=1, split="heldout")
    short = Loader(store, "datasets/d/v", sequence_length=33, seed=0, window_mib=1)
    with pytest.raises(UserError, match="train has 0 samples of 33 tokens, 1 are needed"):
        short.ids(0, 1)


def test_a_failed_read_reaches_the_reader_and_no_thread_stays(store, small_blocks):
    publish_shards(store, counting(4001, 900))
    loader = Loader(store, "datasets/d/v", sequence_length=4, seed=0, window_mib=0.001)
    reads, real = [], store.read_ranges

    def failing(key, ranges):
        reads.append(key)
        if len(reads) > 20:
            raise TemporaryError(f"read_ranges {key}: the store is away")
        return real(key, ranges)

    store.read_ranges = failing
    batches = loader.rank_batches(start_step=0, global_batch=4, rank=0, ranks=1)
    with pytest.raises(TemporaryError, match="the store is away"):
        for _ in batches:
            pass
    assert not [t for t in threading.enumerate() if t.name.startswith("loader")]


def test_reads_are_bounded_ahead_and_end_with_the_iterator(store, small_blocks):
    publish_shards(store, counting(60_001, 60_001))
    loader = Loader(store, "datasets/d/v", sequence_length=4, seed=0, window_mib=0.001)
    read, real = [], store.read_ranges

    def counted(key, ranges):
        read.append(sum(length for _, length in ranges))
        return real(key, ranges)

    store.read_ranges = counted
    batches = loader.rank_batches(start_step=0, global_batch=2, rank=0, ranks=1)
    next(batches)
    assert len(read) <= 4, "one window in use, and a few ahead"
    batches.close()
    held = loader.rank_batches(start_step=0, global_batch=2, rank=0, ranks=1)
    next(held)
    del held
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name.startswith("loader")]


def test_a_rank_reads_only_windows_that_hold_samples_of_its_own(store, small_blocks):
    publish_shards(store, counting(8001, 8001))
    loader = Loader(store, "datasets/d/v", sequence_length=4, seed=0, window_mib=0.0001)
    read, real = [], store.read_ranges
    store.read_ranges = lambda key, ranges: read.append(key) or real(key, ranges)
    batches = loader.rank_batches(start_step=0, global_batch=1000, rank=3, ranks=10)
    found = [next(batches)[0] for _ in range(2)]
    batches.close()
    assert np.array_equal(found, [loader.ids(300, 100), loader.ids(1300, 100)])
    windows_of_200_samples = 200 // (loader.order.window_blocks * loader.order.block_samples)
    assert len(read) <= windows_of_200_samples + 6


def test_blocks_across_shards_are_whole(store, small_blocks):
    tokens = publish_shards(store, counting(500, 7))
    loader = Loader(store, "datasets/d/v", sequence_length=20, seed=3, window_mib=1)
    rows = loader.read(range(loader.num_samples))
    assert np.array_equal(rows, [tokens[i * 20 : i * 20 + 21] for i in range(loader.num_samples)])
