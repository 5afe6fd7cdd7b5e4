"""steps.evaluate against transformers' own loss, a greedy loop by hand, and the slow bigram model."""

import json
import math
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pipelines.settings.load import load
from steps import evaluate
from steps.evaluate import Gate, bigram, gate, score
from steps.lib import folder, hf, llama
from steps.lib.errors import RejectedError, UserError
from tests.after import making
from tests.after.test_bigram import slow_loss
from tests.examples import seed_checkpoint, seed_data
from tests.steps.calling import context

ANY = Gate(max_loss=100.0)
TOKENS = np.array(making.encode(making.TEXT), np.uint16)


@pytest.fixture
def evaluated(store):
    """Evaluates a model on the small dataset."""

    def run(model, judged_by=ANY, **changes):
        dataset = making.publish_dataset(store)
        checkpoint = making.publish_checkpoint(store, model)
        params = evaluate.Params(checkpoint=checkpoint, dataset=dataset, gate=judged_by, **changes)
        return evaluate.run(params, context(store, env={"TRIPOD_DEVICE": "cpu"}))

    return run


def reference_loss(model, tokens, length):
    """By transformers: labels given, so it shifts and averages by itself."""
    total = 0.0
    for start in range(0, len(tokens) - 1, length):
        window = torch.tensor(tokens[start : start + length + 1].astype(np.int64))[None]
        with torch.no_grad():
            total += float(model(input_ids=window, labels=window).loss) * (window.shape[1] - 1)
    return total / (len(tokens) - 1)


@pytest.mark.parametrize(("length", "count"), [(32, len(TOKENS)), (7, 100), (32, 33), (32, 20), (32, 2)])
def test_loss_is_transformers_own(length, count, monkeypatch):
    """Many windows and a rest, no rest, less than one window, one token."""
    monkeypatch.setattr(score, "_BATCH_TOKENS", 2 * length)
    monkeypatch.setattr(score, "_MAX_LOGITS", 17 * 300)
    model = making.random_model()
    expected = reference_loss(model, TOKENS[:count], length)
    assert score.loss(model, TOKENS[:count], length) == pytest.approx(expected, rel=1e-6)


def test_numbers_of_a_whole_call(evaluated, store):
    model = making.random_model(seed=1)
    result = evaluated(model, Gate(max_loss=100.0, prompts=("def ", ""), max_new_tokens=4))
    loss = reference_loss(model, TOKENS, making.CONFIG.sequence_length)
    assert result.loss == pytest.approx(loss, rel=1e-6)
    first_token = len(hf_tokenizer(store).decode([int(TOKENS[0])]).encode())
    num_bytes = sum(len(text.encode()) for text in making.TEXT) - first_token
    assert result.bits_per_byte == pytest.approx(loss * (len(TOKENS) - 1) / math.log(2) / num_bytes, rel=1e-6)
    assert result.baseline_loss == 0.0
    report = json.loads(store.get(result.report))
    assert report["passed"] is True
    assert [c["prompt"] for c in report["completions"]] == ["def ", ""]
    assert report["numbers"]["loss"] == result.loss


def hf_tokenizer(store):
    with tempfile.TemporaryDirectory() as local:
        folder.download(store, "tokenizers/t", Path(local))
        return hf.load_tokenizer(Path(local))


def test_only_so_many_tokens_are_judged(evaluated, store):
    model = making.random_model()
    result = evaluated(model, max_tokens=40)
    assert result.loss == pytest.approx(reference_loss(model, TOKENS[:41], making.CONFIG.sequence_length), rel=1e-6)
    assert json.loads(store.get(result.report))["numbers"]["num_tokens"] == 40


def test_baseline_is_the_bigram_model_of_the_training_split(evaluated):
    """Shards of a split are one stream, so the pair across them counts."""
    with pytest.raises(RejectedError, match="allowed is less than the bigram model's") as caught:
        evaluated(making.random_model(), Gate(max_loss=100.0, beats="bigram"))
    best = min(slow_loss(list(TOKENS), list(TOKENS), 300, k) for k in bigram.STRENGTHS)
    assert f"the bigram model's {best:.4f}" in str(caught.value)


def test_completions_are_greedy(evaluated, store):
    model = making.random_model(seed=2)
    result = evaluated(model, Gate(max_loss=100.0, prompts=("def ",), max_new_tokens=12))
    ids = making.encode(["def "])[:-1]
    for _ in range(12):
        with torch.no_grad():
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    text = json.loads(store.get(result.report))["completions"][0]["completion"]
    assert text == hf_tokenizer(store).decode(ids[len(making.encode(["def "])) - 1 :], skip_special_tokens=True)


def test_a_prompt_without_room_is_refused(evaluated):
    with pytest.raises(UserError, match=r"gate.prompts: 'xxx.* leaves no room for an answer"):
        evaluated(making.random_model(), Gate(max_loss=100.0, prompts=("xxxx" * 16,)))


def test_an_untrained_model_fails_the_demo_gate(evaluated, store):
    torch.manual_seed(0)
    demo = load("tiny", "local")[0].value.evaluate.gate
    with pytest.raises(RejectedError) as caught:
        evaluated(llama.build(making.CONFIG, eos_id=0), demo)
    message = str(caught.value)
    assert f"allowed is at most {demo.max_loss:g}" in message
    assert "allowed is less than the bigram model's" in message
    report = json.loads(store.get(message.rpartition("report ")[2]))
    assert report["passed"] is False
    assert report["numbers"]["loss"] == pytest.approx(math.log(300), abs=0.1), "untrained: every token as likely"
    assert len(report["completions"]) == len(demo.prompts)


def test_the_bigram_model_itself_fails_the_demo_gate():
    """The bigram model in the shape of a network: hidden = one-hot of the token, head = its table of ln P."""
    vocab_size, strength = 300, 10.0
    every = np.arange(vocab_size)
    table = np.empty((vocab_size, vocab_size))
    for first in every:
        c = bigram.count([TOKENS], np.full(vocab_size, first), every, vocab_size)
        unigram = (c.second + 1) / (c.num_tokens + vocab_size)
        table[first] = np.log((c.pair + strength * unigram) / (c.first + strength))
    one_hot = torch.nn.functional.one_hot
    network = SimpleNamespace(
        model=lambda input_ids, use_cache: SimpleNamespace(last_hidden_state=one_hot(input_ids, vocab_size).double()),
        lm_head=lambda hidden: hidden @ torch.tensor(table),
        config=SimpleNamespace(vocab_size=vocab_size),
        device="cpu",
    )
    counts = bigram.count([TOKENS], TOKENS[:-1], TOKENS[1:], vocab_size)
    loss = score.loss(network, TOKENS, 32)
    assert loss == pytest.approx(bigram.loss(counts, strength), rel=1e-6)
    demo = load("tiny", "local")[0].value.evaluate.gate.model_copy(update={"min_passing": 0})
    numbers = {"loss": loss, "bits_per_byte": 1.0, "baseline_loss": bigram.best_loss(counts)[0]}
    assert any("bigram" in line for line in gate.judge(demo, numbers, []))


def test_a_trained_model_passes(evaluated):
    """Trained on the very text that is judged, to be quick: it must beat the bigram model by far."""
    model = making.random_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.tensor(TOKENS.astype(np.int64))[None]
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    passes = Gate(max_loss=3.4, beats="bigram", prompts=("def",), expect_any=("return",), min_passing=1)
    result = evaluated(model.eval(), passes, max_tokens=30)
    assert result.loss < result.baseline_loss


def test_weights_that_are_not_finite_fail(evaluated):
    """A NaN in the weights makes every loss NaN, and NaN passes no gate."""
    model = making.random_model()
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    with pytest.raises(RejectedError, match=r"loss nan, allowed is at most 100; bits_per_byte nan"):
        evaluated(model)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vocab_size": 303}, r"datasets/d/v1: max id 302, the model of checkpoints/k/step-4 has 300 rows"),
        ({"eos_id": 5}, r"datasets/d/v1: documents end with id 5, checkpoints/k/step-4 was trained with 0"),
        ({"splits": {"train": [[1, 2]], "heldout": [[1]]}}, r"datasets/d/v1: 1 tokens held out"),
        ({"splits": {"train": [[1, 2]]}}, r"datasets/d/v1: holds no tokens of split 'heldout'"),
    ],
)
def test_what_does_not_fit_is_refused(store, changes, said):
    dataset = making.publish_dataset(store, **changes)
    checkpoint = making.publish_checkpoint(store, making.random_model())
    params = evaluate.Params(checkpoint=checkpoint, dataset=dataset, gate=ANY)
    with pytest.raises(UserError, match=said):
        evaluate.run(params, context(store, env={"TRIPOD_DEVICE": "cpu"}))


@pytest.mark.parametrize("split", ["heldout", "train"])
def test_a_damaged_shard_is_named_before_it_is_judged_with(store, split):
    """One flipped bit in tokens that are read by ranges; the train split counts where a bigram model is made of it."""
    seed_data(store)
    seed_checkpoint(store)
    manifest = folder.load(store, "datasets/example/v1")
    shard = next(file for file in manifest.files if file.meta["split"] == split)
    data = bytearray(store.get(shard.key))
    data[shard.meta["values_offset"] + 1] ^= 1
    store.put(shard.key, bytes(data))
    gate = evaluate.Gate(max_loss=9.0, beats="bigram")
    params = evaluate.Params(checkpoint="checkpoints/example/step-4", dataset="datasets/example/v1", gate=gate)
    with pytest.raises(UserError, match=f"{shard.key} differs from the digest in its manifest; remove that object"):
        evaluate.run(params, context(store))
