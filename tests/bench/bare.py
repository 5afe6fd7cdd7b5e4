"""The peer of trainer_vs_bare: the shortest honest loop with the same processes, sharding, dtype and batch.

    torchrun --nproc-per-node 2 tests/bench/bare.py STEPS   ->   one line, seconds of each step, on rank 0

Imports nothing of ours. Random tokens from memory; no data reading, no metrics, no checkpoints.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, SEQUENCE, MICRO_BATCH = 1024, 128, 8


def main(steps: int) -> None:
    """Train `steps` steps and print the seconds of each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = LlamaForCausalLM(  # type: ignore[no-untyped-call]
        LlamaConfig(  # type: ignore[call-arg]
            vocab_size=VOCAB,
            hidden_size=128,
            intermediate_size=352,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=SEQUENCE,
            tie_word_embeddings=True,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds = []
    for _ in range(steps):
        begin = time.perf_counter()
        tokens = torch.randint(VOCAB, (MICRO_BATCH, SEQUENCE + 1))
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps(seconds), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(int(sys.argv[1]))
