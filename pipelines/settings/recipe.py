"""A recipe, `config/models/NAME.toml`: what model to make of what data.

Its sections are the steps' own types, so a value is described and checked in one place.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipelines.settings.base import Settings
from steps.evaluate import Gate
from steps.ingest import Params as IngestParams
from steps.lib.llama import ModelConfig
from steps.train import TrainConfig


class Data(IngestParams):
    """[data]: the raw text. The fields of steps.ingest, and the dataset's name."""

    name: str = ""
    """datasets/<name>; the recipe's name when empty."""


class Tokenizer(Settings):
    """[tokenizer]"""

    vocab_size: int = Field(ge=260)
    """Entries, special tokens included."""
    sample_mib: int = Field(64, ge=1)
    """Trained on at most this much text."""


class Evaluate(Settings):
    """[evaluate]"""

    gate: Gate
    max_tokens: int = Field(2_000_000, ge=1)
    """Judge on at most this many held-out tokens."""


class Serving(Settings):
    """[serving]"""

    name: str = ""
    """What users put into a request; the recipe's name when empty."""
    keep: bool = False
    """Whether the server stays after the smoke test."""
    port: int = Field(0, ge=0, le=65535)
    """0: one that is free; on a cluster 8000."""
    gpus: Literal[1, 2, 4, 8] = 1
    """That share a replica, where the site serves on GPUs."""
    replicas: int = Field(1, ge=1)
    """On a cluster."""
    max_model_len: int = Field(ge=8)
    """Tokens of prompt and completion together; at most model.sequence_length."""
    prompt: str = Field(min_length=1)
    """What the smoke test asks."""
    max_tokens: int = Field(48, ge=1)
    """Tokens that the smoke test asks for."""


class Scale(Settings):
    """[scale]: not part of the training's identity: a run goes on at another size."""

    nodes: tuple[Annotated[int, Field(ge=1)], ...] = Field((1,), min_length=1)
    """Node counts that this recipe may run at."""


class Recipe(Settings):
    """A whole recipe."""

    description: str = ""
    """One line for lists."""
    data: Data
    tokenizer: Tokenizer
    model: ModelConfig
    train: TrainConfig
    scale: Scale = Scale()
    evaluate: Evaluate
    serving: Serving

    @model_validator(mode="after")
    def _sizes_fit(self) -> "Recipe":
        _at_most("tokenizer.vocab_size", self.tokenizer.vocab_size, "model.vocab_size", self.model.vocab_size)
        _at_most(
            "serving.max_model_len", self.serving.max_model_len, "model.sequence_length", self.model.sequence_length
        )
        _at_most(
            "train.min_learning_rate", self.train.min_learning_rate, "train.learning_rate", self.train.learning_rate
        )
        _at_most(
            "serving.max_tokens",
            self.serving.max_tokens,
            "serving.max_model_len less 1",
            self.serving.max_model_len - 1,
        )
        new = self.evaluate.gate.max_new_tokens if self.evaluate.gate.prompts else 0
        _at_most("evaluate.gate.max_new_tokens", new, "model.sequence_length less 1", self.model.sequence_length - 1)
        _at_most("train.warmup_steps", self.train.warmup_steps, "train.steps", self.train.steps)
        if not self.data.holdout_fraction:
            raise ValueError("data.holdout_fraction is 0, allowed is more: the model is judged on held-out documents")
        if self.train.global_batch % self.train.micro_batch:
            raise ValueError(
                f"train.global_batch {self.train.global_batch} must be a multiple of train.micro_batch {self.train.micro_batch}"
            )
        return self


def _at_most(name: str, value: Any, limit_name: str, limit: Any) -> None:
    if value > limit:
        raise ValueError(f"{name} is {value}, allowed is at most {limit_name}, {limit}")
