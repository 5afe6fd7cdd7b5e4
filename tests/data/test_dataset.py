"""Token shards and dataset versions: counts by hand, right dtype, any sharding (cases T01, T02, T03, S03)."""

import hashlib
import json
import random

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from steps import publish_dataset, tokenize
from steps.lib import folder
from steps.lib.data import docs as docs_module
from steps.lib.data.tokens import dtype_of, end_documents, write_shard
from steps.lib.errors import UserError
from steps.lib.store import open_store
from tests.data.making import documents, read_file, take, write
from tests.examples import example_text, seed_data, tokenize_all
from tests.steps.calling import context

MARKED = "plain <|endoftext|> words <|im_end|>"


@pytest.fixture
def seeded(store):
    """A store with the examples."""
    seed_data(store)
    return store


def make_docs(store, tmp_path, **params):
    """Docs of the example texts and one with markers in it."""
    files = {f"{i}.txt": example_text(i).encode() for i in range(24)} | {"marked.txt": MARKED.encode()}
    return take(store, write(tmp_path / "in", files), **params)


def make_dataset(store, docs, name="d", **params):
    ctx = context(store)
    names = [file.name for file in folder.load(store, docs).files]
    tokens = [
        tokenize.run(
            tokenize.Params(docs=docs, tokenizer="tokenizers/example", partition=partition, **params), ctx
        ).tokens
        for partition in names
    ]
    made = publish_dataset.run(
        publish_dataset.Params(name=name, docs=docs, tokenizer="tokenizers/example", tokens=tuple(reversed(tokens))),
        ctx,
    )
    return made, folder.load(store, made.dataset, kind="dataset")


def shard_documents(store, manifest, split):
    """The documents of a split, shard after shard, read with Arrow alone."""
    return [
        value.values.to_pylist()
        for file in manifest.files
        if file.meta["split"] == split
        for value in pa.ipc.open_file(store.get(file.key)).read_all()["tokens"]
    ]


def test_every_document_is_its_ids_and_one_end(seeded, tmp_path):
    docs, docs_manifest = make_docs(seeded, tmp_path, holdout_fraction=0.3)
    result, manifest = make_dataset(seeded, docs.docs)
    reference = tokenizers.Tokenizer.from_str(read_file(seeded, "tokenizers/example", "tokenizer.json").decode())
    reference.encode_special_tokens = True
    num_ends = 0
    for split in ("train", "heldout"):
        texts = [text for text, _ in documents(seeded, docs_manifest, split)]
        found = shard_documents(seeded, manifest, split)
        assert found == [[*reference.encode(text).ids, 0] for text in texts]
        num_ends += sum(ids.count(0) for ids in found)
        assert manifest.meta["num_documents"][split] == len(texts)
        assert manifest.meta["num_tokens"][split] == sum(map(len, found))
        assert manifest.meta["text_bytes"][split] == sum(len(text.encode()) for text in texts)
    assert num_ends == result.num_documents == 25
    assert result.num_tokens == manifest.meta["num_tokens"]["train"]
    assert {key: manifest.meta[key] for key in ("vocab_size", "eos_id", "dtype", "docs", "tokenizer")} == {
        "vocab_size": 300, "eos_id": 0, "dtype": "uint16", "docs": docs.docs, "tokenizer": "tokenizers/example"
    }  # fmt: skip
    assert manifest.meta["encoder"].startswith("fastokens ")


def test_values_offset_is_where_the_tokens_are(seeded, tmp_path):
    _, manifest = make_dataset(seeded, make_docs(seeded, tmp_path)[0].docs)
    for file in manifest.files:
        raw = seeded.get(file.key)
        count, start = file.meta["num_tokens"], file.meta["values_offset"]
        tokens = np.frombuffer(raw, "<u2", count, start)
        column = pa.ipc.open_file(raw).read_all()["tokens"].combine_chunks()
        assert tokens.tolist() == column.values.to_pylist()
        assert (len(column), count) == (file.meta["num_documents"], len(column.values))


def test_version_by_hand(seeded, tmp_path):
    """sha256 over schema version, tokenizer, dtype and the documents' tokens in order."""
    result, manifest = make_dataset(seeded, make_docs(seeded, tmp_path, holdout_fraction=0.3)[0].docs)
    by_hand = {
        split: hashlib.sha256(
            b"".join(
                hashlib.sha256(np.array(ids, "<u2").tobytes()).digest()
                for ids in shard_documents(seeded, manifest, split)
            )
        ).hexdigest()
        for split in ("train", "heldout")
    }
    text = json.dumps(
        {
            "documents": by_hand,
            "dtype": "uint16",
            "schema_version": 1,
            "tokenizer": folder.load(seeded, "tokenizers/example").meta["digest"],
        },
        sort_keys=True,
        separators=(",", ":"),
    )
    assert result.version == manifest.meta["version"] == hashlib.sha256(text.encode()).hexdigest()
    assert result.dataset == f"datasets/d/{result.version[:16]}"


def test_version_is_independent_of_shards_partitions_and_source(seeded, tmp_path, monkeypatch):
    from steps.lib.data.tokens import ShardWriter

    docs, _ = make_docs(seeded, tmp_path, holdout_fraction=0.3)
    one, manifest = make_dataset(seeded, docs.docs, name="one")
    monkeypatch.setattr(docs_module, "PARTITION_BYTES", 3000)
    parted, _ = make_docs(seeded, tmp_path, holdout_fraction=0.3)
    assert len(parted.partitions) > 3
    monkeypatch.setattr("steps.lib.data.tokens.ShardWriter", lambda *args: ShardWriter(*args[:4], 700))
    two, sharded = make_dataset(seeded, parted.docs, name="two")
    assert len(sharded.files) > 2 * len(manifest.files)
    assert one.version == two.version
    for split in ("train", "heldout"):
        assert shard_documents(seeded, sharded, split) == shard_documents(seeded, manifest, split)
    for file in sharded.files:
        last = pa.ipc.open_file(seeded.get(file.key)).read_all()["tokens"][-1].values
        assert 2 * (file.meta["num_tokens"] - len(last)) < 700, "it ends at the first document end past its size"
    again, _ = make_dataset(seeded, parted.docs, name="one")
    assert again.dataset == one.dataset
    assert folder.load(seeded, one.dataset) == manifest, "published content stays as it is"


def test_another_tokenizer_or_document_is_another_version(seeded, tmp_path):
    docs, _ = make_docs(seeded, tmp_path)
    one, _ = make_dataset(seeded, docs.docs)
    write(tmp_path / "in", {"marked.txt": MARKED.encode() + b"!"})
    other, _ = make_dataset(seeded, take(seeded, tmp_path / "in")[0].docs)
    assert one.version != other.version


def test_local_store_and_s3_give_the_same_version(seeded, tmp_path, moto_uri):
    bucket = open_store(f"{moto_uri}/elsewhere")
    seed_data(bucket)
    one, other = (folder.load(s, "datasets/example/v1") for s in (seeded, bucket))
    assert one == other
    tokens = folder.load(seeded, "tokens/example"), folder.load(bucket, "tokens/example")
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts[:1], "no tokens given of heldout-00000.arrow; run tokenize for it"),
        (lambda parts: [*parts, parts[0]], "a folder is given twice"),
        (lambda parts: [*parts, "tokens/example"], "holds tokens of docs/example, expected of docs/"),
        (lambda parts: [*parts, "docs/example"], "docs/example: is a docs, expected a tokens"),
        (lambda parts: [*parts, "tokens/absent"], "tokens/absent: no such tokens"),
    ],
)
def test_parts_are_checked(seeded, tmp_path, change, message):
    docs, _ = make_docs(seeded, tmp_path, holdout_fraction=0.3)
    parts = list(tokenize_all(context(seeded), docs.docs, "tokenizers/example"))
    params = publish_dataset.Params(
        name="d", docs=docs.docs, tokenizer="tokenizers/example", tokens=tuple(change(parts))
    )
    with pytest.raises(UserError) as e:
        publish_dataset.run(params, context(seeded))
    assert message in str(e.value)
    assert list(seeded.list("datasets/d")) == []


def test_parts_of_another_sharding_or_tokenizer_are_refused(seeded, tmp_path, monkeypatch):
    docs, _ = make_docs(seeded, tmp_path)
    params = {"docs": docs.docs, "partition": "train-00000.arrow"}
    one = tokenize.run(tokenize.Params(tokenizer="tokenizers/example", **params), context(seeded)).tokens
    reference = tokenizers.Tokenizer.from_str(read_file(seeded, "tokenizers/example", "tokenizer.json").decode())
    reference.add_tokens(["Tale "])
    from steps.lib.data.bpe import publish_tokenizer

    prefix, _ = publish_tokenizer(seeded, reference.to_str())
    other = tokenize.run(tokenize.Params(tokenizer=prefix, **params), context(seeded)).tokens
    values = {"name": "d", "docs": docs.docs, "tokenizer": "tokenizers/example"}
    with pytest.raises(UserError, match=f"made by tokenizer {prefix}"):
        publish_dataset.run(publish_dataset.Params(tokens=(one, other), **values), context(seeded))
    with pytest.raises(UserError, match="store key"):
        publish_dataset.run(publish_dataset.Params(**{**values, "name": "a b", "tokens": (one,)}), context(seeded))


def test_a_partition_or_tokenizer_that_is_absent_is_named(seeded):
    params = {"docs": "docs/example", "tokenizer": "tokenizers/example"}
    with pytest.raises(UserError, match=r"docs/example: no file 'x', it has train-00000\.arrow"):
        tokenize.run(tokenize.Params(partition="x", **params), context(seeded))
    params["tokenizer"] = "tokenizers/absent"
    with pytest.raises(UserError, match="tokenizers/absent: no such tokenizer"):
        tokenize.run(tokenize.Params(partition="train-00000.arrow", **params), context(seeded))


def test_dtype_holds_the_true_largest_id(store, tmp_path):
    """A vocabulary of 151,669: id 151,645 wraps to 20,573 in 16 bits."""
    assert [dtype_of(n) for n in (300, 65_536, 65_537, 151_669)] == ["uint16", "uint16", "uint32", "uint32"]
    seed_data(store)
    base = json.loads(read_file(store, "tokenizers/example", "tokenizer.json"))
    vocab = base["model"]["vocab"]
    for i in range(len(vocab), 151_645):
        vocab[f"unused {i}"] = i
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(base))
    tokenizer.add_tokens(["the seven keys", *(f"added {i}" for i in range(23))])
    from steps.lib.data.bpe import publish_tokenizer

    prefix, meta = publish_tokenizer(store, tokenizer.to_str())
    assert meta["vocab_size"] == 151_669
    made = tokenize.run(
        tokenize.Params(docs="docs/example", tokenizer=prefix, partition="train-00000.arrow"), context(store)
    )
    manifest = folder.load(store, made.tokens)
    assert manifest.meta["dtype"] == "uint32"
    found = shard_documents(store, folder.Manifest(kind="tokens", files=manifest.files[:-1]), "train")
    tokenizer.encode_special_tokens = True
    texts = [text for text, _ in documents(store, folder.load(store, "docs/example"))]
    assert found == [[*tokenizer.encode(text).ids, 0] for text in texts]
    assert any(151_645 in ids for ids in found)


def test_end_documents_puts_ends_where_documents_end():
    tokens, offsets = end_documents(np.array([5, 6, 7, 8], np.uint32), np.array([0, 2, 2, 3, 4]), 9, "uint16")
    assert tokens.tolist() == [5, 6, 9, 9, 7, 9, 8, 9]
    assert offsets.tolist() == [0, 3, 4, 6, 8]
    assert tokens.dtype == np.uint16


def test_shard_bytes_are_the_same_each_time(tmp_path):
    rng = random.Random(3)
    tokens = np.array([rng.randrange(300) for _ in range(1001)], np.uint16)
    offsets = [write_shard(tmp_path / name, tokens, np.array([400, 600, 1])) for name in "ab"]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert offsets[0] == offsets[1]
