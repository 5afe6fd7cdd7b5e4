"""Training the tokenizer: deterministic, whole, loadable; and encoding: text is text (cases T01, T05)."""

import json
import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from tokenizers import models

from steps import tokenize, tokenizer
from steps.lib import folder
from steps.lib.data import encode
from steps.lib.data.bpe import sample, train
from steps.lib.data.encode import Encoder, agree, describe, hard_texts, open_encoder
from steps.lib.errors import UserError
from tests.data.making import read_file, take, write
from tests.examples import example_text
from tests.steps.calling import context

EXAMPLE_TEXTS = [example_text(i) for i in range(24)]


@pytest.fixture(scope="module")
def tokenizer_json():
    return train(EXAMPLE_TEXTS, 320)


def test_training_gives_the_same_bytes_in_another_process(tokenizer_json):
    code = (
        "from steps.lib.data.bpe import train; from tests.examples import example_text\n"
        "print(train([example_text(i) for i in range(24)], 320), end='')"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == tokenizer_json


def test_the_folder_loads_in_transformers_and_means_the_same(store, tmp_path):
    source = write(tmp_path / "in", {f"{i}.txt": text.encode() for i, text in enumerate(EXAMPLE_TEXTS)})
    docs = take(store, source)[0].docs
    result = tokenizer.run(tokenizer.Params(docs=docs, vocab_size=320), context(store))
    assert result == tokenizer.run(tokenizer.Params(docs=docs, vocab_size=320), context(store))
    manifest = folder.download(store, result.tokenizer, tmp_path / "tokenizer", kind="tokenizer")
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    assert (len(loaded), loaded.eos_token, loaded.eos_token_id) == (320, "<|endoftext|>", 0)
    assert manifest.meta["eos_id"] == 0
    assert result.vocab_size == manifest.meta["vocab_size"] == max(loaded.get_vocab().values()) + 1 == 320
    text = "The miller counts  every lamp, ünïcödé 👍\n\n"
    ids = loaded.encode(text)
    assert loaded.decode(ids) == text
    ours = open_encoder((tmp_path / "tokenizer" / "tokenizer.json").read_text(), [])
    assert ours.encode([text])[0].tolist() == ids


def test_only_training_documents_are_used(store, tmp_path):
    files = {f"{i}.txt": f"{'abcdefgh'[i % 8] * 5} {i}".encode() for i in range(60)}
    result, manifest = take(store, write(tmp_path / "in", files), holdout_fraction=0.5)
    made = tokenizer.run(tokenizer.Params(docs=result.docs, vocab_size=280), context(store)).tokenizer
    [train_file] = [f for f in manifest.files if f.meta["split"] == "train"]
    texts = pa.ipc.open_file(store.get(train_file.key)).read_all()["text"].to_pylist()
    assert read_file(store, made, "tokenizer.json").decode() == train(texts, 280)


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_a_damaged_tokenizer_encodes_nothing(store, tmp_path, damage):
    """One flipped letter is a tokenizer too, but another one: the tokens would be wrong without a word."""
    docs, _ = take(store, write(tmp_path / "in", {f"{i}.txt": b"a text %d" % i for i in range(9)}))
    made = tokenizer.run(tokenizer.Params(docs=docs.docs, vocab_size=280), context(store)).tokenizer
    [file] = [f for f in folder.load(store, made).files if f.name == "tokenizer.json"]
    good = store.get(file.key)
    store.put(file.key, good.replace(b'"x"', b'"\xc4\xb1"') if damage is None else damage)
    params = tokenize.Params(docs=docs.docs, tokenizer=made, partition=docs.partitions[0])
    with pytest.raises(UserError, match=r"tokenizer\.json differs from the digest in its manifest"):
        tokenize.run(params, context(store))
    store.put(file.key, good)
    assert tokenize.run(params, context(store)).num_tokens


def test_sample_is_spread_evenly_and_bounded():
    batches = [pa.array([f"{i:03d}" + "x" * 97 for i in range(start, start + 50)]) for start in range(0, 200, 50)]
    taken = [int(text[:3]) for text in sample(batches, 20_000, 5_000)]
    assert len(taken) == 50
    assert np.diff(taken).max() <= 5
    assert taken[-1] >= 195
    assert len(list(sample(batches, 20_000, 20_000))) == 200
    assert len(list(sample(batches, 20_000, 1 << 30))) == 200


def test_special_tokens_in_text_are_text(tokenizer_json):
    text = "a <|endoftext|> b<|im_end|>"
    for encoder in (encode._fast(tokenizer_json), encode._reference(tokenizer_json)):
        ids, offsets = encoder.encode([text, "<|endoftext|>"])
        assert 0 not in ids
        assert offsets[0] == 0
        decoded = tokenizers.Tokenizer.from_str(tokenizer_json).decode(ids[: offsets[1]].tolist())
        assert decoded == text


def test_the_fast_encoder_is_used_where_it_agrees(tokenizer_json):
    encoder = open_encoder(tokenizer_json, EXAMPLE_TEXTS)
    assert encoder.name.startswith("fastokens ")
    reference = tokenizers.Tokenizer.from_str(tokenizer_json)
    ids, offsets = encoder.encode(EXAMPLE_TEXTS)
    expected = [reference.encode(text).ids for text in EXAMPLE_TEXTS]
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected


def test_a_fast_encoder_that_differs_is_not_used(tokenizer_json, monkeypatch):
    right = encode._fast(tokenizer_json)

    def wrong_on(word):
        def encode_texts(texts):
            ids, offsets = right.encode(texts)
            ids = ids.copy()
            for i, text in enumerate(texts):
                if word in text:
                    ids[offsets[i]] += 1
            return ids, offsets

        return lambda _: Encoder("wrong", encode_texts)

    monkeypatch.setattr(encode, "_fast", wrong_on("Tale 7"))  # in the sample of the data
    assert open_encoder(tokenizer_json, EXAMPLE_TEXTS).name.startswith("tokenizers ")
    assert open_encoder(tokenizer_json, EXAMPLE_TEXTS[:3]).name == "wrong"
    monkeypatch.setattr(encode, "_fast", wrong_on("日本語"))  # in the fixed set
    assert open_encoder(tokenizer_json, []).name.startswith("tokenizers ")


def test_a_tokenizer_that_the_fast_encoder_does_not_know(tokenizer_json):
    unigram = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.5)], unk_id=0))
    encoder = open_encoder(unigram.to_str(), ["ab"])
    assert encoder.name.startswith("tokenizers ")
    assert encoder.encode(["ab", "", "ba"])[0].tolist() == [1, 2, 2, 1]
    assert encoder.encode(["ab", "", "ba"])[1].tolist() == [0, 2, 2, 4]


def test_truncation_and_padding_of_a_tokenizer_do_not_count(tokenizer_json):
    shortening = tokenizers.Tokenizer.from_str(tokenizer_json)
    shortening.enable_truncation(8)
    shortening.enable_padding(length=64)
    text = EXAMPLE_TEXTS[0]
    expected = tokenizers.Tokenizer.from_str(tokenizer_json).encode(text).ids
    for make in (encode._fast, encode._reference):
        assert make(shortening.to_str()).encode([text])[0].tolist() == expected


def test_agree_compares_boundaries_too():
    def cut(at):
        return lambda texts: (np.array([1, 2, 3], np.uint32), np.array([0, at, 3]))

    assert agree(cut(1), cut(1), ["a", "b"])
    assert not agree(cut(1), cut(2), ["a", "b"])


def test_describe_counts_added_tokens(tokenizer_json):
    added = tokenizers.Tokenizer.from_str(tokenizer_json)
    added.add_tokens(["one more", "two more"])
    added.add_special_tokens(["<|im_end|>"])
    meta = describe(added.to_str(), "<|im_end|>")
    assert (meta["vocab_size"], meta["eos_id"]) == (323, 322)
    assert any("aone moreb" in text for text in hard_texts(added.to_str()))
    with pytest.raises(UserError, match="'</s>' is none of its 320 entries"):
        describe(tokenizer_json, "</s>")


@pytest.mark.parametrize("text", ["a" * (1 << 20), " " * (1 << 20), "aGVsbG8gd29ybGQx" * (1 << 16)])
def test_text_without_breaks_is_encoded_in_bounded_time(tokenizer_json, text):
    encoder = open_encoder(tokenizer_json, [])
    ids, offsets = encoder.encode(["before", text, "after"])
    reference = tokenizers.Tokenizer.from_str(tokenizer_json)
    assert ids[: offsets[1]].tolist() == reference.encode("before").ids
    assert ids[offsets[2] :].tolist() == reference.encode("after").ids
    assert reference.decode(ids[offsets[1] : offsets[2]].tolist()) == text


@pytest.mark.parametrize("text", ["a" * (8 << 20), " " * (8 << 20), random.Random(1).randbytes(4 << 20).hex()])
def test_a_document_without_breaks_does_not_hold_up_training(text):
    """As one word it would take hours; it is cut, and teaches little beside the other documents."""
    entries = json.loads(train([text, *EXAMPLE_TEXTS * 20], 400))["model"]["vocab"]
    without = json.loads(train(EXAMPLE_TEXTS * 20, 400))["model"]["vocab"]
    assert len(set(without) & set(entries)) > 350
