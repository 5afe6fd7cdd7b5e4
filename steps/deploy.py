"""A registered model -> a vLLM endpoint that answers.

    refuse    a model that is broken, or asked for more than it or this machine can
    adopt     a live server of the same name, digest and settings: smoke test, done
    skip      nothing is to stay and this digest passed the same smoke test before: done
    start     on a port that is free, wait until healthy, smoke test
    swap      when it is to stay: the state file names the new server, then the old one ends

The server ends with this process, however that ends, until the state file names it. The old server
of the same name answers until the new one has passed its smoke test.
"""

import json
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import Field

from steps.contract import Context, Params as BaseParams, Result as BaseResult, Step

if TYPE_CHECKING:
    from pathlib import Path

    from steps.lib.completions import Client
    from steps.lib.folder import Manifest
    from steps.lib.serving import Endpoint, Serving
    from steps.lib.vllm import Server, Settings


class Params(BaseParams):
    """What to serve and how."""

    model: str
    """A model folder."""
    name: str
    """The name that users put into a request."""
    keep: bool = False
    """Whether the server stays when the smoke test is done."""
    port: int = Field(0, ge=0, le=65535)
    """0: one that is free."""
    max_model_len: int = Field(ge=8)
    """Tokens of prompt and completion together."""
    prompt: str
    """What the smoke test asks."""
    max_tokens: int = Field(48, ge=1)
    """Tokens that the smoke test asks for."""


class Result(BaseResult):
    """What answers now."""

    endpoint: str
    """http://host:port/v1 while the server stays, else ""."""
    completion: str
    """What the smoke test got, prompt not included."""
    adopted: bool
    """Whether a server that ran already was taken."""


step = Step(image="serve", launches=True, timeout=timedelta(minutes=30), cpus=2, memory_gib=4, cached=False)

_TOLD = ("bytes", "chat_template", "context_length", "digest", "dtype", "eos_id")
"""What the manifest of a model says of it."""
_CONFIGURED = ("hidden_size", "num_attention_heads", "num_hidden_layers", "transformers_version")
"""What its config.json says."""

EXAMPLE = Params(model="models/example/v1", name="example", max_model_len=32, prompt="def ", max_tokens=8)


def run(params: Params, ctx: Context) -> Result:
    """Serve the model, or adopt the endpoint that serves this digest, and ask it the prompt.

    Raises:
        UserError: the model is broken or asked for more than it can, or the port is taken.
        TemporaryError: the server did not come up in time.
        RejectedError: the answer is empty.
    """
    from steps.lib.serving import Serving

    model, config = _check(params, ctx)
    settings = _settings(params, ctx, model, config)
    serving = Serving(ctx.env, ctx.store.uri)
    with serving.lock(params.name):
        old = serving.settle(params.name)
        if old and _is_same(old, params, model, settings):
            completion = _smoke(_client(old), params, ctx, model)
            ctx.say(f"{params.name}: {old.url} serves this digest already, pid {old.pid}; adopted")
            return Result(endpoint=old.url, completion=completion, adopted=True)
        note = _Note(params, ctx, model, settings)
        if not params.keep and (passed := note.read()):
            when, completion = passed
            ctx.say(f"smoke test of this digest passed {when}; serving.keep is false, nothing to start")
            return Result(endpoint="", completion=completion, adopted=False)
        return _serve(params, ctx, model, settings, serving, old, note)


def _check(params: Params, ctx: Context) -> "tuple[Manifest, dict[str, Any]]":
    """The model's manifest and config.json. Raises UserError when it cannot be served; nothing has been started yet."""
    from importlib.metadata import version

    from steps.lib import folder, hf
    from steps.lib.errors import UserError

    if problem := folder.check(ctx.store, params.model):
        raise UserError(f"{params.model} is broken: {problem}; export it again")
    model = folder.load(ctx.store, params.model, "model")
    if lacks := hf.missing_files(file.name for file in model.files):
        raise UserError(f"{params.model}: lacks {', '.join(lacks)}; export it again")
    if unsaid := [name for name in _TOLD if name not in model.meta]:
        raise UserError(f"{params.model}/{folder.MANIFEST}: says no {', '.join(unsaid)}; export it again")
    limit = model.meta["context_length"]
    if params.max_model_len > limit:
        raise UserError(f"max_model_len: got {params.max_model_len}, {params.model} allows at most {limit}")
    if params.max_tokens >= params.max_model_len:
        raise UserError(
            f"max_tokens: got {params.max_tokens}, allowed is less than max_model_len, {params.max_model_len}"
        )
    config, here = _config(ctx, model), version("transformers")
    needs = config["transformers_version"].partition(".")[0]
    if int(here.partition(".")[0]) < int(needs):
        raise UserError(
            f"{params.model}: written for transformers {needs}, the server has {here}; "
            f"serve with transformers {needs} or newer"
        )
    return model, config


def _config(ctx: Context, model: "Manifest") -> dict[str, Any]:
    """config.json. Raises UserError when it is damaged, or lacks what serving goes by."""
    from steps.lib.errors import UserError

    key = next(file.key for file in model.files if file.name == "config.json")
    data = ctx.store.get(key)
    try:
        config = dict(json.loads(data))
    except (ValueError, TypeError) as e:
        raise UserError(f"{key}: damaged: {e}; export the model again") from e
    if lacks := [name for name in _CONFIGURED if name not in config]:
        raise UserError(f"{key}: lacks {', '.join(lacks)}; export the model again")
    return config


def _settings(params: Params, ctx: Context, model: "Manifest", config: dict[str, Any]) -> "Settings":
    """How to serve. Raises UserError when the machine's memory cannot hold the model and one sequence."""
    from os import sysconf

    from steps.lib import vllm
    from steps.lib.errors import UserError

    if problem := vllm.refusal(config, ctx.env):
        raise UserError(f"{params.model}: {problem}")
    sequence = vllm.cache_bytes(config, params.max_model_len, model.meta["dtype"])
    weights, memory = model.meta["bytes"], sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")
    if weights + sequence > memory:
        raise UserError(
            f"{params.model}: weights of {weights / 2**30:.1f} GiB and {sequence / 2**30:.1f} GiB for one sequence of "
            f"max_model_len {params.max_model_len} do not fit into this machine's {memory / 2**30:.1f} GiB"
        )
    return vllm.Settings(
        name=params.name,
        max_model_len=params.max_model_len,
        dtype=model.meta["dtype"],
        cache_bytes=min(vllm.total_cache_bytes(sequence), memory - weights),
    )


def _is_same(old: "Endpoint", params: Params, model: "Manifest", settings: "Settings") -> bool:
    return (
        old.digest == model.meta["digest"]
        and old.settings == settings.__dict__
        and params.port in (0, old.port)
        and _client(old).healthy()
    )


def _client(endpoint: "Endpoint") -> "Client":
    from steps.lib.completions import Client

    return Client(endpoint.base)


def _serve(
    params: Params,
    ctx: Context,
    model: "Manifest",
    settings: "Settings",
    serving: "Serving",
    old: "Endpoint | None",
    note: "_Note",
) -> Result:
    """Start, wait, smoke test; then keep or end."""
    import shutil

    from steps.lib import folder, vllm

    vllm.command(ctx.env)  # refuses before anything is copied
    port = _port(params, ctx, serving, old)
    files = serving.new_folder(params.name) if params.keep else ctx.scratch
    try:
        folder.download(ctx.store, params.model, files / vllm.MODEL, "model")
        with vllm.Server(files, settings, port, ctx.env, ctx.say) as server:
            seconds = server.wait_healthy(vllm.start_timeout_s(model.meta["bytes"]))
            completion = _smoke(server.client, params, ctx, model)
            ctx.say(f"{params.name}: healthy after {seconds:.0f} s, smoke test passed")
            note.write(completion)
            if not params.keep:
                return Result(endpoint="", completion=completion, adopted=False)
            endpoint = _endpoint(params, model, settings, server, files)
            serving.keep(endpoint)
            server.stay()
    except BaseException:
        shutil.rmtree(files / vllm.MODEL, ignore_errors=True)  # the log stays until the next deployment
        raise
    serving.settle(params.name)
    ctx.say(
        f"{params.name}: {endpoint.url}, pid {endpoint.pid}; `python -m pipelines.deploy stop {params.name}` ends it"
    )
    return Result(endpoint=endpoint.url, completion=completion, adopted=False)


def _port(params: Params, ctx: Context, serving: "Serving", old: "Endpoint | None") -> int:
    """The port to listen on. Raises UserError when the one asked for is taken."""
    from steps.lib import vllm
    from steps.lib.errors import UserError

    if params.port == 0:
        return vllm.free_port()
    if vllm.port_is_free(params.port):
        return params.port
    if old and old.port == params.port:
        port = vllm.free_port()
        ctx.say(
            f"{params.name}: port {params.port} answers with the old version until the new one is ready; "
            f"that one gets port {port}; the same command again moves it to {params.port}"
        )
        return port
    holder = next((f"{e.name}, pid {e.pid}" for e in serving.all()[0] if e.port == params.port), "another program")
    raise UserError(f"port: got {params.port}, which is taken by {holder}; choose another, or 0 for one that is free")


def _smoke(client: "Client", params: Params, ctx: Context, model: "Manifest") -> str:
    """Ask as users do. Returns the completion.

    Raises:
        RejectedError: the name is not served, the answer is empty, or the stop token does not stop.
    """
    from steps.lib.errors import RejectedError

    if params.name not in (names := client.models()):
        raise RejectedError(f"smoke test: {client.base} serves {', '.join(names)}, not {params.name}")
    completion = client.complete(params.name, params.prompt, max_tokens=params.max_tokens)
    if not completion.text:
        raise RejectedError(
            f"smoke test: the completion of {params.prompt!r} is empty; look at the stop tokens and at training"
        )
    end = client.complete(params.name, params.prompt, max_tokens=2, only_token=model.meta["eos_id"])
    if (end.finish_reason, end.num_tokens) != ("stop", 1):
        raise RejectedError(
            f"smoke test: stop token {model.meta['eos_id']} does not stop the answer ({end.finish_reason})"
        )
    if not model.meta["chat_template"]:
        ctx.say(f"{params.name}: no chat template, so /v1/completions answers and /v1/chat/completions does not")
    elif not client.chat(params.name, params.prompt, max_tokens=params.max_tokens).text:
        raise RejectedError(f"smoke test: the chat answer to {params.prompt!r} is empty; look at the chat template")
    return completion.text


def _endpoint(params: Params, model: "Manifest", settings: "Settings", server: "Server", files: "Path") -> "Endpoint":
    from steps.lib.process import place, started
    from steps.lib.serving import Endpoint

    return Endpoint(
        name=params.name,
        model=params.model,
        digest=model.meta["digest"],
        port=server.port,
        **place()._asdict(),
        pid=server.pid,
        started=started(server.pid),
        since=time.time(),
        settings=dict(settings.__dict__),
        folder=str(files),
    )


class _Note:
    """Says in the store that a smoke test passed: same digest, same server, same question."""

    def __init__(self, params: Params, ctx: Context, model: "Manifest", settings: "Settings"):
        from steps.lib import registry, vllm
        from steps.lib.digest import digest_of

        asked = {"prompt": params.prompt, "max_tokens": params.max_tokens, **settings.__dict__}
        name, _ = registry.split(params.model)
        digest = digest_of({"digest": model.meta["digest"], "server": vllm.identity(ctx.env), **asked})
        self._key = f"models/{name}/smoke/{digest}.json"
        self._store = ctx.store
        self._asked = asked

    def read(self) -> tuple[str, str] | None:
        """When it passed, and the completion; None when it did not, or the note is damaged: asked again, it is written anew."""
        from steps.lib.store import NotFoundError

        try:
            data = self._store.get(self._key)
        except NotFoundError:
            return None
        try:
            note = json.loads(data)
            return str(note["passed"]), str(note["completion"])
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, completion: str) -> None:
        passed = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._store.put(
            self._key, json.dumps({"passed": passed, "completion": completion, **self._asked}, indent=1).encode()
        )
