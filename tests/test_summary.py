"""What a person reads when a run has succeeded."""

from pipelines.engine.events import NodeResult, Phase
from pipelines.summary import summary


def nodes(endpoint: str) -> dict[str, NodeResult]:
    outputs = {
        "train": {"step": "20", "num_tokens": "40960", "train_loss": "2.5"},
        "evaluate": {"loss": "2.25", "baseline_loss": "3.5", "bits_per_byte": "1.125"},
        "register": {"model": "models/mine/0123", "champion": "true"},
        "deploy": {"endpoint": endpoint, "completion": "self.x = 1\n\x1b[31m"},
    }
    return {name: NodeResult(phase=Phase.SUCCEEDED, outputs=values) for name, values in outputs.items()}


def test_commands_name_the_recipe_as_given_and_the_server_as_it_is_called():
    kept = summary("r1", "mine.toml", "chat", nodes("http://127.0.0.1:8000/v1"), 303)
    assert any("python -m pipelines.deploy stop chat " in line for line in kept)
    ended = summary("r1", "mine.toml", "chat", nodes(""), 303)
    assert any("python -m pipelines.deploy run --model mine.toml " in line for line in ended)


def test_numbers_are_the_steps_and_a_completion_cannot_move_the_cursor():
    lines = summary("r1", "mine.toml", "chat", nodes(""), 303)
    assert lines[0] == "r1 succeeded in 5m 03s"
    assert "  trained     20 steps, 40,960 tokens, loss 2.500" in lines
    assert "  held-out    loss 2.250, bigram model 3.500, 1.125 bits a byte" in lines
    assert r"  completion  self.x = 1\n\x1b[31m" in lines


def test_a_completion_of_blanks_is_seen():
    results = nodes("")
    results["deploy"].outputs["completion"] = "   "
    assert "  completion  '   '" in summary("r1", "mine.toml", "chat", results, 303)


def test_a_long_completion_is_cut():
    results = nodes("")
    results["deploy"].outputs["completion"] = "a\n" * 60
    cut = r"a\n" * 33
    assert f"  completion  {cut}…" in summary("r1", "mine.toml", "chat", results, 303)
