"""Memory for each GPU, estimated without torch: the plan asks before anything is queued.

Legend: N parameters, T tokens of a forward pass on one rank (micro_batch x L), H hidden size,
K key/value width (H x kv heads / heads), I width of the MLP, V vocabulary,
b bytes of a number in the matrix products (4 for float32, 2 for bfloat16), S ranks that share one copy.

What is kept for the backward pass was read off transformers' Llama (torch.autograd.graph.saved_tensors_hooks
counts it in the tests). Not in here: the CUDA context, NCCL's buffers and fragmentation, together some GiB.
"""

from pydantic import BaseModel, ConfigDict

from steps.lib.llama import ModelConfig, num_parameters
from steps.train import TrainConfig

_GIB = 1 << 30
_MASTER_BYTES = 4
"""Parameters, gradients and each of AdamW's two moments are float32."""


class Memory(BaseModel):
    """What one GPU holds at the fullest moment of a step, GiB."""

    model_config = ConfigDict(frozen=True)

    parameters_gib: float
    """This rank's share, and what is gathered whole: two layers, embedding and head."""
    gradients_gib: float
    """This rank's share, and what is not reduced yet: all of it when a step has several forward passes."""
    optimizer_gib: float
    activations_gib: float
    """Kept for the backward pass, with the logits."""

    @property
    def total_gib(self) -> float:
        """All of it."""
        return self.parameters_gib + self.gradients_gib + self.optimizer_gib + self.activations_gib


def estimate(model: ModelConfig, train: TrainConfig, ranks: int) -> Memory:
    """Memory for each GPU of a training on so many ranks.

    Raises:
        UserError: the sizes do not divide (steps.train.preflight).
    """
    from steps.train.preflight import check_sizes

    check_sizes(train, ranks)
    n, shards, b = num_parameters(model), ranks // train.replicate, _number_bytes(train)
    layer, rest = parameters_of_a_layer(model), n - model.num_layers * parameters_of_a_layer(model)
    whole = min(2, model.num_layers) * layer + rest
    accumulates = train.global_batch > train.micro_batch * ranks
    return Memory(
        parameters_gib=(_MASTER_BYTES * n / shards + b * whole) / _GIB,
        gradients_gib=_MASTER_BYTES * (n / shards + (n if accumulates else whole)) / _GIB,
        optimizer_gib=2 * _MASTER_BYTES * n / shards / _GIB,
        activations_gib=activation_bytes(model, train) / _GIB,
    )


def checkpoint_bytes(model: ModelConfig) -> int:
    """What a save writes over all ranks: parameters and two moments (generators are a few KiB a rank)."""
    return 3 * _MASTER_BYTES * num_parameters(model)


def parameters_of_a_layer(model: ModelConfig) -> int:
    """q and o H x H, k and v H x K, three matrices H x I, two norms of H."""
    h, i, k = model.hidden_size, model.intermediate_size, _kv_width(model)
    return 2 * h * h + 2 * h * k + 3 * h * i + 2 * h


def activation_bytes(model: ModelConfig, train: TrainConfig) -> int:
    """Kept between the forward and the backward pass of one micro batch."""
    tokens, b = train.micro_batch * model.sequence_length, _number_bytes(train)
    layer = layer_bytes_a_token(model, b)
    kept = {
        "none": model.num_layers * layer,
        "selective": model.num_layers * _selective_bytes_a_token(model, b) + layer,
        "full": model.num_layers * model.hidden_size * b + layer,
    }[train.activation_checkpointing]
    return tokens * (kept + norm_bytes_a_token(model, b)) + _logits_bytes(model, train, tokens)


def layer_bytes_a_token(model: ModelConfig, b: int) -> int:
    """Of one decoder layer, for each token.

    Two norms; attention: q, k, v as they enter it, its output, a float32 log-sum-exp a head; the
    MLP: gate, silu(gate), up and their product.
    """
    h, i, k = model.hidden_size, model.intermediate_size, _kv_width(model)
    attention = b * (2 * h + 2 * k) + 4 * model.num_heads
    return 2 * norm_bytes_a_token(model, b) + attention + 4 * b * i


def norm_bytes_a_token(model: ModelConfig, b: int) -> int:
    """Of one RMSNorm, for each token: its input in float32, the root, the normed and the scaled vector."""
    return 4 * model.hidden_size + 4 + 2 * b * model.hidden_size


def _selective_bytes_a_token(model: ModelConfig, b: int) -> int:
    """The layer's input, attention's output, every second of q k v o gate up down: q, v, gate, down."""
    return b * (4 * model.hidden_size + _kv_width(model) + model.intermediate_size)


def _logits_bytes(model: ModelConfig, train: TrainConfig, tokens: int) -> int:
    """Logits, their float32 copy and its log-softmax; of one chunk when the loss is chunked."""
    chunk = min(tokens, train.loss_chunk_tokens or tokens)
    return chunk * model.vocab_size * (_number_bytes(train) + 8)


def _number_bytes(train: TrainConfig) -> int:
    return 2 if train.precision == "bfloat16" else 4


def _kv_width(model: ModelConfig) -> int:
    return model.hidden_size * model.num_kv_heads // model.num_heads
