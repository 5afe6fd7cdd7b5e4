"""A server on this machine, kept track of in $TRIPOD_STATE (steps/lib/serving.py).

The server ends with this process, however that ends, until the state file names it.
"""

import shutil
import time
from os import sysconf
from pathlib import Path

from steps.contract import Context
from steps.deploy import Params, Result, smoke
from steps.deploy.check import Model, check
from steps.lib import folder, vllm
from steps.lib.completions import Client
from steps.lib.errors import UserError
from steps.lib.process import place, started
from steps.lib.serving import Endpoint, Serving


def deploy(params: Params, ctx: Context) -> Result:
    """See steps.deploy.run."""
    model = check(params, ctx)
    settings = _settings(params, ctx, model)
    serving = Serving(ctx.env, ctx.store.uri)
    with serving.lock(params.name):
        old = serving.settle(params.name)
        if old and _is_same(old, params, model, settings):
            completion = smoke.ask(Client(old.base), params, ctx, model)
            ctx.say(f"{params.name}: {old.url} serves this digest already, pid {old.pid}; adopted")
            return Result(endpoint=old.url, completion=completion, adopted=True)
        note = smoke.Note(params, ctx, model, {"server": vllm.identity(ctx.env), **settings.__dict__})
        if not params.keep and (passed := note.read()):
            when, completion = passed
            ctx.say(f"smoke test of this digest passed {when}; serving.keep is false, nothing to start")
            return Result(endpoint="", completion=completion, adopted=False)
        return _serve(params, ctx, model, settings, serving, old, note)


def _settings(params: Params, ctx: Context, model: Model) -> vllm.Settings:
    """How to serve. Raises UserError when the machine's memory cannot hold the model and one sequence."""
    if problem := vllm.refusal(model.config, ctx.env):
        raise UserError(f"{params.model}: {problem}")
    sequence = vllm.cache_bytes(model.config, params.max_model_len, model.dtype)
    weights, memory = model.num_bytes, sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")
    if weights + sequence > memory:
        raise UserError(
            f"{params.model}: weights of {weights / 2**30:.1f} GiB and {sequence / 2**30:.1f} GiB for one sequence of "
            f"max_model_len {params.max_model_len} do not fit into this machine's {memory / 2**30:.1f} GiB"
        )
    return vllm.Settings(
        name=params.name,
        max_model_len=params.max_model_len,
        dtype=model.dtype,
        cache_bytes=min(vllm.total_cache_bytes(sequence), memory - weights),
    )


def _is_same(old: Endpoint, params: Params, model: Model, settings: vllm.Settings) -> bool:
    return (
        old.digest == model.digest
        and old.settings == settings.__dict__
        and params.port in (0, old.port)
        and Client(old.base).healthy()
    )


def _serve(
    params: Params,
    ctx: Context,
    model: Model,
    settings: vllm.Settings,
    serving: Serving,
    old: Endpoint | None,
    note: smoke.Note,
) -> Result:
    """Start, wait, smoke test; then keep or end."""
    vllm.command(ctx.env)  # refuses before anything is copied
    port = _port(params, ctx, serving, old)
    files = serving.new_folder(params.name) if params.keep else ctx.scratch
    try:
        folder.download(ctx.store, params.model, files / vllm.MODEL, "model")
        with vllm.Server(files, settings, port, ctx.env, ctx.say) as server:
            seconds = server.wait_healthy(vllm.start_timeout_s(model.num_bytes))
            completion = smoke.ask(server.client, params, ctx, model)
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


def _port(params: Params, ctx: Context, serving: Serving, old: Endpoint | None) -> int:
    """The port to listen on. Raises UserError when the one asked for is taken."""
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


def _endpoint(params: Params, model: Model, settings: vllm.Settings, server: vllm.Server, files: Path) -> Endpoint:
    return Endpoint(
        name=params.name,
        model=params.model,
        digest=model.digest,
        port=server.port,
        **place()._asdict(),
        pid=server.pid,
        started=started(server.pid),
        since=time.time(),
        settings=dict(settings.__dict__),
        folder=str(files),
    )
