"""steps.export: what transformers loads is the checkpoint's model, or the export is refused."""

import json
import math
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from steps import export
from steps.lib import folder, hf, registry
from steps.lib.errors import UserError
from tests.after import making
from tests.steps.calling import context

IDS = torch.tensor([making.encode(making.TEXT)[:30]])


def run_export(store, **changes):
    params = {"checkpoint": "checkpoints/k/step-4", "dataset": "datasets/d/v1", "name": "m", **changes}
    return export.run(export.Params(**params), context(store))


def loaded(store, prefix: str, local: Path):
    folder.download(store, prefix, local, "model")
    model, info = AutoModelForCausalLM.from_pretrained(local, output_loading_info=True)
    assert not any(info.values()), info
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_round_trip_has_equal_logits(store, tmp_path, tied):
    config = making.CONFIG.model_copy(update={"tie_embeddings": tied})
    model = making.random_model(config)
    making.publish_dataset(store)
    making.publish_checkpoint(store, model, config)
    result = run_export(store)
    again = loaded(store, result.model, tmp_path)
    assert again.config.tie_word_embeddings is tied
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is tied
    with torch.no_grad():
        assert torch.equal(again(input_ids=IDS).logits, model(input_ids=IDS).logits)
    assert result.num_parameters == sum(p.numel() for p in model.parameters())
    assert AutoTokenizer.from_pretrained(tmp_path).encode(making.TEXT[0]) == making.encode(making.TEXT[:1])[:-1]


def test_the_same_checkpoint_has_the_same_digest(store, tmp_path):
    making.publish_dataset(store)
    making.publish_checkpoint(store, making.random_model())
    first = run_export(store)
    assert run_export(store) == first
    assert first.model == f"models/m/{first.digest[:16]}"
    making.publish_checkpoint(store, making.random_model(), prefix="checkpoints/other/step-9")
    assert run_export(store, checkpoint="checkpoints/other/step-9") == first, "where it comes from is not part of it"
    making.publish_checkpoint(store, making.random_model(seed=1), prefix="checkpoints/k/step-5")
    assert run_export(store, checkpoint="checkpoints/k/step-5").digest != first.digest


def test_other_versions_of_the_libraries_export_the_same_model(store, monkeypatch):
    """They are kept beside the model: the last ones that exported it."""
    from transformers import configuration_utils
    from transformers.generation import configuration_utils as generation_utils

    making.publish_dataset(store)
    making.publish_checkpoint(store, making.random_model())
    first = run_export(store)
    assert registry.read_versions(store, first.model) == {name: version(name) for name in export.step.libraries}
    before = {head.key: head.tag for head in store.list(first.model)}

    monkeypatch.setattr(configuration_utils, "__version__", "5.99.1")
    monkeypatch.setattr(generation_utils, "__version__", "5.99.1")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "5.99.1")
    assert run_export(store) == first
    assert {head.key: head.tag for head in store.list(first.model)} == before
    assert registry.read_versions(store, first.model) == dict.fromkeys(export.step.libraries, "5.99.1")
    config = next(file.key for file in folder.load(store, first.model).files if file.name == "config.json")
    assert json.loads(store.get(config))["transformers_version"] == "5.0.0"


def test_bfloat16_training_is_stored_as_bfloat16(store, tmp_path):
    model = making.random_model()
    making.publish_dataset(store)
    making.publish_checkpoint(store, model, precision="bfloat16")
    result = run_export(store)
    assert folder.load(store, result.model).meta["dtype"] == "bfloat16"
    again = loaded(store, result.model, tmp_path)
    assert again.dtype == torch.bfloat16
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].bfloat16()), name


def test_large_weights_are_split(store, tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "MAX_SHARD", "40KB")
    model = making.random_model()
    making.publish_dataset(store)
    making.publish_checkpoint(store, model)
    result = run_export(store)
    names = [file.name for file in folder.load(store, result.model).files]
    assert "model.safetensors.index.json" in names
    assert sum(name.endswith(".safetensors") for name in names) > 1
    with torch.no_grad():
        assert torch.equal(loaded(store, result.model, tmp_path)(input_ids=IDS).logits, model(input_ids=IDS).logits)


def test_stop_tokens_agree_everywhere(store, tmp_path):
    """cases.md E03: config, generation config and tokenizer name one stop token, and padding is not it."""
    files = making.tokenizer_files()
    settings = json.loads(files["tokenizer_config.json"])
    files["tokenizer_config.json"] = json.dumps({**settings, "pad_token": making.EOS}).encode()
    making.publish_dataset(store, tokenizer=making.publish_tokenizer(store, "tokenizers/pad", files))
    making.publish_checkpoint(store, making.random_model())
    folder.download(store, run_export(store).model, tmp_path)
    config, generation = (json.loads((tmp_path / f"{n}.json").read_text()) for n in ("config", "generation_config"))
    assert config["eos_token_id"] == generation["eos_token_id"] == AutoTokenizer.from_pretrained(tmp_path).eos_token_id
    assert config["pad_token_id"] is None
    assert "pad_token_id" not in generation


def test_another_stop_token_is_refused(store):
    files = making.tokenizer_files(eos="!")
    making.publish_dataset(store, tokenizer=making.publish_tokenizer(store, "tokenizers/other", files))
    making.publish_checkpoint(store, making.random_model())
    with pytest.raises(UserError, match=r"stop token: ids disagree: checkpoint 0, dataset 0, tokenizer \d+"):
        run_export(store)


def test_a_tokenizer_larger_than_the_model_is_refused(store):
    """cases.md T03."""
    files = making.tokenizer_files()
    tokenizer = json.loads(files["tokenizer.json"])
    extra = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": 300 + i, "content": f"<|extra{i}|>", **extra} for i in range(3)]
    files["tokenizer.json"] = json.dumps(tokenizer).encode()
    making.publish_dataset(store, tokenizer=making.publish_tokenizer(store, "tokenizers/big", files))
    making.publish_checkpoint(store, making.random_model())
    with pytest.raises(UserError, match=r"tokenizer: max id 302, model has 300 rows"):
        run_export(store)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_missing_tokenizer_file_is_named(store, name):
    files = making.tokenizer_files()
    del files[name]
    making.publish_dataset(store, tokenizer=making.publish_tokenizer(store, "tokenizers/less", files))
    making.publish_checkpoint(store, making.random_model())
    with pytest.raises(UserError, match=rf"missing {name};"):
        run_export(store)


def test_every_missing_file_of_a_model_is_named():
    assert hf.missing_files(["tokenizer.json"]) == [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "model.safetensors",
    ]
    whole = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert hf.missing_files([*whole, "model-00001-of-00002.safetensors"]) == []


def filled(change):
    state = dict(making.random_model().state_dict())
    change(state)
    hf.fill(making.random_model(seed=1), state)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda s: s.update({f"_orig_mod.{n}": s.pop(n) for n in list(s)}),
            r"weights: 12 \(lm_head.weight, .*\) missing, 12 \(_orig_mod.lm_head.weight, .*\) unknown",
        ),
        (lambda s: s.pop("model.norm.weight"), r"weights: 1 \(model.norm.weight\) missing, 0 unknown"),
        (
            lambda s: s.update({"model.norm.weight": torch.ones(3)}),
            r"weights: model.norm.weight is \[3\], the model has \[64\]",
        ),
        (
            lambda s: s.update({"model.norm.weight": torch.full((64,), math.nan)}),
            r"weights: model.norm.weight has values that are not finite",
        ),
        (
            lambda s: s.update({"lm_head.weight": s["lm_head.weight"] + 1}),
            r"tie_embeddings is true, but lm_head.weight differs",
        ),
    ],
)
def test_weights_of_another_model_are_refused(change, said):
    """cases.md E01, E02: a prefix in front of every name must never end in random weights."""
    with pytest.raises(UserError, match=said):
        filled(change)


def test_the_state_itself_fills():
    model = making.random_model(seed=1)
    hf.fill(model, dict(making.random_model().state_dict()))
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS).logits, making.random_model()(input_ids=IDS).logits)


def test_a_folder_that_is_not_the_model_is_noticed(tmp_path):
    hf.write(making.random_model(seed=1), tmp_path, eos_id=0, pad_id=None)
    hf.compare(making.random_model(seed=1), tmp_path)
    with pytest.raises(Exception, match="logits of the written model differ"):
        hf.compare(making.random_model(seed=2), tmp_path)


def test_what_the_system_refuses_the_weights_is_no_bug(tmp_path):
    """safetensors tells of a full disk, and of this, in an error of its own kind."""
    (tmp_path / "model.safetensors").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        hf.write(making.random_model(), tmp_path, eos_id=0, pad_id=None)
    assert caught.value.filename == str(tmp_path)
