"""Settings: found, merged, checked; every mistake is one line that helps."""

from pathlib import Path

import pytest

from pipelines.settings.load import load, load_site, names, store_uri
from steps.lib.errors import UserError


def problem(model="tiny", site="local", *sets: str) -> str:
    with pytest.raises(UserError) as caught:
        load(model, site, sets)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_shipped_settings_are_valid():
    for model in names("models"):
        for site in names("sites"):
            load(model, site)


def test_an_image_comes_from_the_site_or_else_from_the_environment(monkeypatch):
    _, lab = load("tiny", "lab")
    with pytest.raises(UserError, match=r"images.train: empty, and \$TRIPOD_IMAGE_TRAIN is not set"):
        lab.value.image("train")
    monkeypatch.setenv("TRIPOD_IMAGE_TRAIN", "registry/train@sha256:1")
    assert lab.value.image("train") == "registry/train@sha256:1"
    assert load("tiny", "prod")[1].value.image("train") == "registry.internal/tripod/train"


def test_set_is_json_or_else_a_string():
    model, site = load(
        "tiny", "local", ["train.steps=700", "serving.keep=true", "data.source=/my text", "cache.verify=full"]
    )
    assert (model.value.train.steps, model.value.serving.keep, model.value.data.source) == (700, True, "/my text")
    assert site.value.cache.verify == "full"


def test_origin():
    model, _ = load("tiny", "local", ["train.steps=700"])
    assert model.origin("train.steps") == "--set"
    assert model.origin("train.micro_batch").endswith("tiny.toml")
    assert model.origin("train.clip_norm") == "default"


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        (["train.stepz=3"], "train.stepz: unknown key (did you mean 'steps'?); allowed are seed, steps"),
        (["trian.steps=3"], "unknown section 'trian' (did you mean 'train'?)"),
        (["train.steps=many"], "train.steps: got 'many'"),
        (["train.steps=0"], "train.steps: got 0; input should be greater than or equal to 1"),
        (["train.learning_rate=NaN"], "train.learning_rate: got nan"),
        (["train.steps"], "got 'train.steps', allowed is path=value"),
        (["model.num_heads=3"], "hidden_size 128 must be a multiple of num_heads 3"),
        (["tokenizer.vocab_size=2048"], "tokenizer.vocab_size is 2048, allowed is at most model.vocab_size, 1024"),
        (["train.micro_batch=5"], "train.global_batch 16 must be a multiple of train.micro_batch 5"),
        (
            ["serving.max_model_len=131072"],
            "serving.max_model_len is 131072, allowed is at most model.sequence_length, 128",
        ),
        (["train.warmup_steps=2001"], "train.warmup_steps is 2001, allowed is at most train.steps, 2000"),
        (["serving.max_tokens=128"], "serving.max_tokens is 128, allowed is at most serving.max_model_len less 1, 127"),
        (["serving.prompt="], "serving.prompt: got ''"),
        (
            ["evaluate.gate.max_new_tokens=128"],
            "evaluate.gate.max_new_tokens is 128, allowed is at most model.sequence_length less 1, 127",
        ),
        (["evaluate.gate.min_passing=6"], "evaluate.gate: min_passing is 6, allowed is at most 5: there are 5 prompts"),
        (["evaluate.gate.prompts=[]"], "min_passing is 3, allowed is at most 0: there are 0 prompts and 15 words"),
        (["evaluate.gate.expect_any=[]"], "allowed is at most 0: there are 5 prompts and 0 words in expect_any"),
        (["data.include=[]"], "data.include: got []"),
        (["data.include=*.md"], "data.include: got '*.md'; input should be a list"),
        (["train=3"], "train: got 3; input should be a section"),
        (
            ["train.seed=1", "train.micro_batch=5"],
            "tiny.toml, with --set train.seed, train.micro_batch: train.global_batch",
        ),
        (["gang.backend=nccl"], "gang.backend is nccl with gang.device cpu"),
        (["train.learning_rate=1e999"], "train.learning_rate: got inf"),
        (["scale.nodes=[0]"], "scale.nodes.0: got 0"),
        (["scale.nodes=[]"], "scale.nodes: got []"),
        (["data.holdout_fraction=0"], "data.holdout_fraction is 0, allowed is more"),
        (['description="\\ud83d"'], "--set description: holds what is no text in UTF-8"),
        ([f"train.steps={'[' * 50_000}"], "--set train.steps: nested too deeply"),
        (["train.steps.x=1"], "steps is a value, not a section"),
    ],
)
def test_a_wrong_set_is_named(sets, expected):
    assert expected in problem("tiny", "local", *sets)


def test_unknown_names_get_a_proposal():
    assert problem("tinny").startswith(
        "--model: got 'tinny' (did you mean 'tiny'?); allowed are llama3-8b, starter, tiny and a file"
    )
    assert problem("tiny", "locl").startswith("--site: got 'locl' (did you mean 'local'?)")
    assert "no/such.toml: no such file" in problem("no/such.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine = local", "not TOML: Invalid value (at line 1, column 10)"),
        ('engine = "lokal"', "engine: got 'lokal'; input should be 'local' or 'argo'"),
        ("[run]\nretries = 1", "engine: missing; it must be set"),
        ('engine = "local"\n[run]\nretry = 1', "run.retry: unknown key (did you mean 'retries'?)"),
        ('engine = "local"\n[stor]\nuri = "x"', "stor: unknown key (did you mean 'store'?)"),
    ],
)
def test_a_wrong_file_is_named(text, expected, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    message = problem("tiny", str(path))
    assert message.startswith(str(path))
    assert expected in message


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b'\xef\xbb\xbfengine = "local"\n')
    assert load_site(str(path)).name == "mine"


def test_site_by_environment_and_config_folder(tmp_path, monkeypatch):
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites" / "ours.toml").write_text('engine = "local"\n[run]\nretries = 9\n')
    monkeypatch.setenv("TRIPOD_CONFIG", str(tmp_path))
    monkeypatch.setenv("TRIPOD_SITE", "ours")
    assert load("tiny")[1].value.run.retries == 9


def test_store_by_file_then_environment_then_data_folder(tmp_path, monkeypatch):
    site = load_site("local").value
    monkeypatch.setenv("TRIPOD_STORE", "s3://bucket/x")
    assert store_uri(load_site("prod").value) == "s3://tripod"
    assert store_uri(site) == "s3://bucket/x"
    monkeypatch.delenv("TRIPOD_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert store_uri(site) == f"file://{tmp_path}/tripod"


def test_a_misspelt_key_is_told_before_the_one_that_it_leaves_missing(tmp_path):
    text = Path("config/models/tiny.toml").read_text()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(text.replace("num_layers", "num_layer"))
    assert "model.num_layer: unknown key (did you mean 'num_layers'?)" in problem(str(wrong))
    wrong.write_text(text.replace("[evaluate.gate]", "[evaluate.gates]"))
    assert "evaluate.gates: unknown key (did you mean 'gate'?)" in problem(str(wrong))


def test_names_that_no_file_can_have(tmp_path):
    assert "no file can have such a name" in problem("x" * 300)
    assert "no file can have such a name" in problem("x" * 300 + ".toml")
    deep = tmp_path / "deep.toml"
    deep.write_text("x = " + "[" * 5000)
    assert "nested too deeply" in problem(str(deep))
