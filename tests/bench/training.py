"""What our trainer costs over the shortest loop, and what a save costs the loop."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from steps.lib import folder
from steps.lib.llama import ModelConfig
from steps.lib.store import Store, open_store
from steps.train import TrainConfig, metrics
from tests.bench import bare

ROUNDS = 5
STEPS, WARM_UP = 150, 30
SAVE_ROUNDS = 5
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
HERE = Path(__file__).resolve().parent


def trainer_vs_bare() -> list[float]:
    """Our trainer's tokens/s over the bare loop's: median step of each, one after the other each round.

    Both: 2 gloo processes of one thread, fully_shard, float32, batch 8 x 128 tokens a rank, fused AdamW,
    clipping. Ours also reads shuffled data, logs every step, agrees on stopping and saves once.
    """
    return [_bare_step_s() / _our_step_s() for _ in range(ROUNDS)]


def save_blocked() -> list[float]:
    """Time the loop is blocked by an asynchronous save over a synchronous one, 315 MB of state, file://."""
    with tempfile.TemporaryDirectory() as store:
        done = _run([*TORCHRUN, str(HERE / "saving.py"), f"file://{store}", str(SAVE_ROUNDS)])
    pairs = json.loads(done.splitlines()[-1])
    print(f"  save_blocked, seconds (synchronous, asynchronous): {[[round(s, 3) for s in pair] for pair in pairs]}")
    return [blocked / synchronous for synchronous, blocked in pairs]


def _bare_step_s() -> float:
    seconds = json.loads(_run([*TORCHRUN, str(HERE / "bare.py"), str(STEPS)]).splitlines()[-1])
    return float(statistics.median(seconds[WARM_UP:]))


def _our_step_s() -> float:
    with tempfile.TemporaryDirectory() as path:
        store = open_store(f"file://{path}")
        _publish_dataset(store)
        model = ModelConfig(
            num_layers=2,
            hidden_size=128,
            intermediate_size=352,
            num_heads=4,
            num_kv_heads=2,
            sequence_length=bare.SEQUENCE,
            vocab_size=bare.VOCAB,
        )
        train = TrainConfig(
            steps=STEPS,
            global_batch=2 * bare.MICRO_BATCH,
            micro_batch=bare.MICRO_BATCH,
            learning_rate=1e-2,
            checkpoint_every_steps=STEPS,
        )
        argv = [
            "--dataset=datasets/bench/v1",
            f"--model={model.model_dump_json()}",
            f"--train={train.model_dump_json()}",
        ]
        env = {"TRIPOD_STORE": store.uri, "TRIPOD_NPROC": "2", "TRIPOD_THREADS": "1"}
        _run([sys.executable, "-m", "steps", "train", *argv], env)
        [base] = {"/".join(head.key.split("/")[:2]) for head in store.list("checkpoints")}
        lines = metrics.read(store, base)
    return float(statistics.median(line["seconds"] for line in lines[WARM_UP:]))


def _publish_dataset(store: Store) -> None:
    """A million random tokens in one shard."""
    tokens = np.random.default_rng(0).integers(0, bare.VOCAB, 1_000_000).astype("<u2")
    meta = {"split": "train", "num_tokens": tokens.size, "num_documents": 1, "values_offset": 0}
    shard = folder.put_blob(store, tokens.tobytes()).model_copy(update={"name": "train-0", "meta": meta})
    about = {"vocab_size": bare.VOCAB, "eos_id": 0, "dtype": "uint16", "tokenizer": "tokenizers/none"}
    folder.publish(store, "datasets/bench/v1", kind="dataset", files=[shard], meta=about)


def _run(argv: list[str], env: dict[str, str] | None = None) -> str:
    """Stdout of a command in the repository's root; its stderr is shown when it fails."""
    done = subprocess.run(
        argv,
        cwd=HERE.parent.parent,
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent), **(env or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout
