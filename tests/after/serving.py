"""What the deployment tests share: model folders without a model, and contexts with the stub server."""

import json
import shlex
import sys
from pathlib import Path

from steps import deploy
from steps.contract import Context
from steps.lib import folder
from steps.lib.store import Store
from tests.steps.calling import context

STUB = Path(__file__).with_name("stub_server.py")
CONFIG = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 64}


def publish_model(
    store: Store,
    version: str = "v1",
    *,
    name: str = "m",
    without: str = "",
    needs: str = "5",
    config: bytes = b"",
    untold: tuple[str, ...] = (),
    **meta: object,
) -> str:
    """A model folder that looks whole. Returns its prefix.

    Args:
        without: a file that it lacks.
        needs: the version of transformers that it was written for.
        config: its config.json, when it is not to be whole.
        untold: what its manifest does not say.
    """
    content = {
        "config.json": config or json.dumps({**CONFIG, "transformers_version": f"{needs}.0.0"}).encode(),
        "generation_config.json": b"{}",
        "model.safetensors": f"weights {version}".encode(),
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
    }
    content.pop(without, None)
    about = {
        "digest": version.encode().hex().ljust(64, "0"),
        "dtype": "float32",
        "context_length": 128,
        "eos_id": 0,
        "chat_template": False,
        "bytes": 1000,
        **meta,
    }
    about = {key: value for key, value in about.items() if key not in untold}
    folder.publish(store, f"models/{name}/{version}", kind="model", content=content, meta=about)
    return f"models/{name}/{version}"


class Place:
    """A machine for deployments: its state folder, the stub that stands for vLLM, and what was said."""

    def __init__(self, store: Store, root: Path):
        self.store = store
        self.starts = root / "starts"
        self.env = {"TRIPOD_STORE": store.uri, "TRIPOD_STATE": str(root / "state"), "PATH": "/usr/bin:/bin"}
        self.said: list[str] = []
        self.stub()

    def stub(self, **options: object) -> None:
        """How the stub behaves from now on (stub_server.py)."""
        words = [sys.executable, str(STUB), "--starts", str(self.starts)]
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        self.env["TRIPOD_VLLM_COMMAND"] = shlex.join(words)

    def context(self) -> Context:
        return context(self.store, env=self.env, say=self.said.append)

    def deploy(self, model: str, **changes: object) -> deploy.Result:
        return deploy.run(params(model, **changes), self.context())

    @property
    def num_starts(self) -> int:
        return len(self.starts.read_text().splitlines()) if self.starts.exists() else 0


def params(model: str, **changes: object) -> deploy.Params:
    """Params for `model` that the stub can serve."""
    return deploy.Params(**{"model": model, "name": "m", "max_model_len": 64, "prompt": "def ", **changes})
