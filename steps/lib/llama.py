"""The model: a Llama-family transformer, by transformers' own classes.

Importing this module pulls in no torch; `build` does.
"""

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


class ModelConfig(BaseModel):
    """A Llama-family model; names follow transformers.LlamaConfig where the thing is the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    num_layers: int = Field(ge=1)
    hidden_size: int = Field(ge=8)
    intermediate_size: int = Field(ge=8)
    """Width of the MLP."""
    num_heads: int = Field(ge=1)
    num_kv_heads: int = Field(ge=1)
    """Key/value heads; num_heads must be a multiple."""
    sequence_length: int = Field(ge=8)
    """Tokens a training sample; also max_position_embeddings of the exported model."""
    vocab_size: int = Field(ge=1)
    """Rows of the embedding; at least the tokenizer's largest id + 1."""
    rope_theta: float = Field(10_000.0, gt=0)
    tie_embeddings: bool = True
    dropout: float = Field(0.0, ge=0, lt=1)
    """Attention dropout while training."""

    @model_validator(mode="after")
    def _heads(self) -> "ModelConfig":
        if self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} must be a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}")
        return self


def num_parameters(config: ModelConfig) -> int:
    """Parameters of the model, tied embeddings counted once.

    Embedding V x H (twice when untied); a layer: q and o H x H, k and v H x (H x kv / heads), three
    MLP matrices H x I, two norms of H; one last norm of H.
    """
    h, i, v = config.hidden_size, config.intermediate_size, config.vocab_size
    kv = h * config.num_kv_heads // config.num_heads
    layer = 2 * h * h + 2 * h * kv + 3 * h * i + 2 * h
    return v * h * (1 if config.tie_embeddings else 2) + config.num_layers * layer + h


def build(
    config: ModelConfig,
    *,
    attention: str = "sdpa",
    eos_id: int | None = None,
    kind: "type[LlamaForCausalLM] | None" = None,
) -> "LlamaForCausalLM":
    """The model on torch's current default device (use `with torch.device("meta")` for sizes alone).

    Args:
        attention: sdpa, eager or flash_attention_2.
        eos_id: id that ends a document, written into the config.
        kind: a subclass to make instead of LlamaForCausalLM.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    return (kind or LlamaForCausalLM)(
        LlamaConfig(  # type: ignore[call-arg]  # attn_implementation goes to the base class
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.sequence_length,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tie_embeddings,
            attention_dropout=config.dropout,
            use_cache=False,
            bos_token_id=None,
            eos_token_id=eos_id,
            attn_implementation=attention,
        )
    )
