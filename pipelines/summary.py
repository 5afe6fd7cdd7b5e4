"""What a person wants to know when a run has succeeded: the model, how good, what it says, what next."""

from collections.abc import Mapping

from pipelines.engine.events import NodeResult
from pipelines.telling import one_line, took

_COMPLETION_CHARS = 100


def summary(run_id: str, recipe: str, served_as: str, nodes: Mapping[str, NodeResult], wall_s: float) -> list[str]:
    """Lines for the end of a training run that succeeded.

    Args:
        recipe: NAME or FILE, as it was given.
        served_as: the name that the server has.
        nodes: results by task name, as the engine gives them.
    """
    train, quality = nodes["train"].outputs, nodes["evaluate"].outputs
    registered, served = nodes["register"].outputs, nodes["deploy"].outputs
    champion = "champion" if registered["champion"] == "true" else "not better than the champion, which stays"
    baseline = float(quality["baseline_loss"])
    against = f", bigram model {baseline:.3f}" if baseline else ""
    lines = [
        f"{run_id} succeeded in {took(wall_s)}",
        f"  model       {registered['model']} ({champion})",
        f"  trained     {train['step']} steps, {int(train['num_tokens']):,} tokens, loss {float(train['train_loss']):.3f}",
        f"  held-out    loss {float(quality['loss']):.3f}{against}, {float(quality['bits_per_byte']):.3f} bits a byte",
        f"  completion  {one_line(_seen(served['completion']), _COMPLETION_CHARS)}",
        f"  endpoint    {served['endpoint'] or 'stopped after the smoke test (serving.keep = false)'}",
        "next",
    ]
    if served["endpoint"]:
        nexts = [
            (f"curl -s {served['endpoint']}/models", "what it serves"),
            ("python -m pipelines.deploy status", "what serves on this machine"),
            (f"python -m pipelines.deploy stop {served_as}", "end it"),
        ]
    else:
        nexts = [
            (f"python -m pipelines.deploy run --model {recipe}", "serve it"),
            (f"python -m pipelines.runs logs {run_id}", "what the steps printed"),
            (f"python -m pipelines.config show --model {recipe}", "what can be changed with --set"),
        ]
    width = max(len(command) for command, _ in nexts)
    return lines + [f"  {command:<{width}}  {what}" for command, what in nexts]


def _seen(completion: str) -> str:
    """Quoted when it is nothing but blanks, as an untrained model's is."""
    return completion if completion.strip() else repr(completion)
