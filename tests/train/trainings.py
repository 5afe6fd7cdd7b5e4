"""A tiny training by the command that everyone uses, and a dataset for it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steps.lib import checkpoint, folder
from steps.lib.llama import ModelConfig
from steps.lib.store import Store, open_store
from steps.train import Params, TrainConfig, metrics

DATASET = "datasets/tiny/v1"
VOCAB = 64


def publish_dataset(store: Store, *, num_tokens: int = 1400, vocab_size: int = VOCAB) -> None:
    """A dataset of one shard whose tokens follow a pattern with noise, so that there is something to learn."""
    rng = np.random.default_rng(5)
    tokens = (np.arange(num_tokens) * 7 % 23 + rng.integers(0, 3, num_tokens)).astype("<u2")
    blob = folder.put_blob(store, tokens.tobytes())
    meta = {"split": "train", "num_tokens": num_tokens, "num_documents": 1, "values_offset": 0}
    shard = blob.model_copy(update={"name": "train-0", "meta": meta})
    about = {"vocab_size": vocab_size, "eos_id": 0, "dtype": "uint16", "tokenizer": "tokenizers/none"}
    folder.publish(store, DATASET, kind="dataset", files=[shard], meta=about)


def tiny(*, dropout: float = 0.0, tie_embeddings: bool = True, **train: Any) -> Params:
    """Params of a training that takes milliseconds a step; 8 sequences of 32 tokens in 4 forward passes."""
    model = ModelConfig(
        num_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_heads=4,
        num_kv_heads=2,
        sequence_length=32,
        vocab_size=VOCAB,
        dropout=dropout,
        tie_embeddings=tie_embeddings,
    )
    values = {
        "seed": 11,
        "steps": 8,
        "global_batch": 8,
        "micro_batch": 2,
        "learning_rate": 1e-2,
        "min_learning_rate": 1e-4,
        "warmup_steps": 5,
        "shuffle_window_mib": 0.001,
        "checkpoint_every_steps": 4,
        **train,
    }
    return Params(dataset=DATASET, model=model, train=TrainConfig(**values))


class Command:
    """`python -m steps train ...` in a session of its own, its stderr in a file.

    Args:
        env: what the place sets, on top of a CPU with one thread a process.
    """

    def __init__(
        self, store_uri: str, params: Params, folder: Path, *, nproc: int = 2, env: dict[str, str] | None = None
    ):
        argv = [
            f"--dataset={params.dataset}",
            f"--model={params.model.model_dump_json()}",
            f"--train={params.train.model_dump_json()}",
        ]
        settings = {"TRIPOD_STORE": store_uri, "TRIPOD_NPROC": str(nproc), "TRIPOD_THREADS": "1", **(env or {})}
        folder.mkdir(parents=True, exist_ok=True)
        self.stderr = folder / f"stderr-{time.monotonic_ns()}"
        with self.stderr.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "steps", "train", *argv],
                env={**os.environ, **settings},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
            )

    def result(self) -> dict[str, Any]:
        """Wait for success; what the command prints."""
        out, code = self.end()
        assert code == 0, self.said()
        return json.loads(out.splitlines()[-1])

    def end(self, timeout_s: float = 240) -> tuple[str, int]:
        """Wait for the end: stdout and exit code."""
        try:
            out, _ = self.process.communicate(timeout=timeout_s)
        finally:
            self.kill()
        return out, self.process.returncode

    def kill(self) -> None:
        """SIGKILL for the command alone; the workers have to notice by themselves."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def said(self) -> str:
        """All of stderr so far."""
        return self.stderr.read_text()

    def last_line(self) -> str:
        """The last line of stderr."""
        return self.said().splitlines()[-1]

    def workers(self) -> list[int]:
        """Pids of the workers that run, in the order of their ranks."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                environ = dict(v.partition("=")[::2] for v in path.read_text().split("\0"))
            except OSError:
                continue  # it ended while we looked
            if environ.get("TRIPOD_AGENT_PID") == str(self.process.pid):
                found[int(environ["RANK"])] = int(path.parent.name)
        return [found[rank] for rank in sorted(found)]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 180) -> None:
        """Until the condition holds, or the command has ended."""
        deadline = time.monotonic() + timeout_s
        while not condition() and self.process.poll() is None:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)


def base_of(store: Store) -> str:
    """checkpoints/<train-key> of the only training in the store."""
    bases = {"/".join(head.key.split("/")[:2]) for head in store.list("checkpoints")}
    assert len(bases) == 1, bases
    return bases.pop()


def newest_step(uri: str) -> int:
    """The newest committed step of the only training in the store; 0 when there is none."""
    store = open_store(uri)
    if not any(store.list("checkpoints")):
        return 0
    return max(checkpoint.committed_steps(store, base_of(store)), default=0)


def trajectory(store: Store) -> list[dict[str, Any]]:
    """The metrics log without its times."""
    lines = metrics.read(store, base_of(store))
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1)), "every step once, in order"
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def bytes_of_checkpoint(store: Store, step: int) -> dict[str, str]:
    """File name -> sha256: model, optimizer, generators and index."""
    prefix = checkpoint.prefix_of(base_of(store), step)
    assert folder.check(store, prefix, full=True) == ""
    return {file.name: file.sha256 for file in folder.load(store, prefix).files}
