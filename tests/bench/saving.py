"""A gang that saves a large state, blocking and not, in turn: run by torchrun from training.py.

    torchrun --nproc-per-node 2 tests/bench/saving.py STORE ROUNDS   ->   JSON on rank 0

State: parameters and both AdamW moments, float32, sharded over the ranks, through the train step's own
saver. A synchronous save stands still until the commit; an asynchronous one until the state is copied.
"""

import json
import os
import sys
import time

import torch
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.placement_types import Shard

from steps.lib.checkpoint import CheckpointMeta
from steps.lib.llama import ModelConfig
from steps.lib.store import open_store
from steps.train.gang import join
from steps.train.runtime import Runtime
from steps.train.saver import Saver

NUM_TENSORS, ROWS, COLUMNS = 12, 2560, 2560
STATE_MB = 4 * NUM_TENSORS * ROWS * COLUMNS / 1e6
"""315 MB."""
MODEL = ModelConfig(
    num_layers=1, hidden_size=8, intermediate_size=8, num_heads=1, num_kv_heads=1, sequence_length=8, vocab_size=8
)


def main(store_uri: str, rounds: int) -> None:
    """Print [[synchronous s, asynchronous s], ...], seconds for which the loop stood still."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with join(Runtime(nproc=ranks), replicate=1, rank=rank, local_rank=rank, ranks=ranks) as gang:
        full = torch.rand(ROWS, COLUMNS)
        state = {f"t{i}": distribute_tensor(full + i, gang.mesh, [Shard(0)]) for i in range(NUM_TENSORS)}
        store = open_store(store_uri)
        saver = Saver(
            store,
            "checkpoints/bench",
            gang,
            keep=1,
            max_failed=0,
            wait_s=0,
            should_stop=lambda: False,
            committed=lambda meta: None,
        )
        saver.prepare(dict(state))
        pairs = []
        for number in range(rounds + 1):  # the first one is not counted
            begin = time.perf_counter()
            saver.start(dict(state), _meta(2 * number + 1, ranks), None)
            saver.settle()
            synchronous = time.perf_counter() - begin
            blocked = saver.start(dict(state), _meta(2 * number + 2, ranks), None)
            saver.settle()
            pairs.append([synchronous, blocked])
        saver.thread.shutdown()
        if rank == 0:
            print(json.dumps(pairs[1:]), flush=True)


def _meta(step: int, ranks: int) -> CheckpointMeta:
    return CheckpointMeta(
        step=step, model=MODEL, train={}, dataset="", eos_id=0, world_size=ranks, samples=0, optimizer_steps=step
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
