"""`python -m pipelines.deploy run|status|stop`: serve a registered model on this machine, see what serves, end it."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.cli import guarded

if TYPE_CHECKING:
    from pipelines.settings.site import Site
    from steps.lib.serving import Endpoint, Serving


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m pipelines.deploy", description="Serve registered models.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--site", default="", metavar="NAME|FILE", help="whose store ($TRIPOD_SITE, else local)")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    run = verbs.add_parser("run", parents=[common], help="serve a model, or take the server that serves it already")
    run.add_argument("--model", required=True, metavar="NAME|FILE", help="recipe: its [serving] says how")
    run.add_argument("--version", default="champion", help="a version or an alias (default: champion)")
    run.add_argument(
        "--keep",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether it stays after the smoke test (default: it stays)",
    )
    run.add_argument("--set", action="append", default=[], metavar="path=value", help="override a setting")
    status = verbs.add_parser("status", parents=[common], help="what serves on this machine")
    status.add_argument("--json", action="store_true", help="print JSON on stdout")
    stop = verbs.add_parser("stop", parents=[common], help="end a server")
    stop.add_argument("name", metavar="NAME", help="the name it serves under, as status shows it")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    verbs = {"run": _run, "status": _status, "stop": _stop}
    return guarded(lambda: verbs[args.verb](args))


def _run(args: argparse.Namespace) -> int:
    """Call the deploy step just as an engine would; its result is the last line of stdout."""
    from pipelines.names import dns_name
    from pipelines.settings.load import load, open_site_store, store_uri
    from steps import runner
    from steps.lib.registry import find

    recipe, site = load(args.model, args.site, args.set)
    serving, uri = recipe.value.serving, store_uri(site.value)
    fields = {
        "model": find(open_site_store(site.value), dns_name(recipe.name), args.version),
        "name": serving.name or recipe.name,
        "keep": json.dumps(args.keep),
        "port": str(serving.port),
        "max_model_len": str(serving.max_model_len),
        "prompt": serving.prompt,
        "max_tokens": str(serving.max_tokens),
    }
    env = {**os.environ, **site.value.step_env(uri)}
    code = runner.main(["deploy", *(f"--{field}={value}" for field, value in fields.items())], env)
    if code == 0:
        stays = _serving(site.value).find(fields["name"])
        words = (
            f"it stays; `python -m pipelines.deploy stop {fields['name']}` ends it" if stays else "the server has ended"
        )
        print(words, file=sys.stderr)
    return code


def _status(args: argparse.Namespace) -> int:
    from pipelines.settings.load import load_site
    from steps.lib.completions import Client

    endpoints, problems = _serving(load_site(args.site).value).all()
    rows = [(endpoint, Client(endpoint.base).healthy()) for endpoint in endpoints]
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if args.json:
        shown = [{**endpoint.model_dump(mode="json"), "url": endpoint.url, "healthy": ok} for endpoint, ok in rows]
        print(json.dumps(shown, indent=1))
        return 0
    if not rows and not problems:
        print("nothing serves on this machine; python -m pipelines.deploy run --model NAME starts a server")
    for endpoint, ok in rows:
        print("\n".join(_about(endpoint, healthy=ok)))
    return 0


def _about(endpoint: "Endpoint", *, healthy: bool) -> list[str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(endpoint.since))
    return [
        f"{endpoint.name}  {endpoint.url}  {'healthy' if healthy else 'does not answer'}",
        f"  model   {endpoint.model}  digest {endpoint.digest[:16]}",
        f"  since   {since}  pid {endpoint.pid}",
        f"  log     {endpoint.log}",
    ]


def _stop(args: argparse.Namespace) -> int:
    from pipelines.settings.load import load_site
    from steps.lib.errors import UserError

    serving = _serving(load_site(args.site).value)
    with serving.lock(args.name):
        endpoint = serving.settle(args.name)
        if endpoint is None:
            names = ", ".join(e.name for e in serving.all()[0]) or "none"
            raise UserError(f"NAME: got {args.name!r}, which does not serve on this machine; those that do: {names}")
        serving.end(endpoint)
    print(f"{args.name}: ended, pid {endpoint.pid}")
    return 0


def _serving(site: "Site") -> "Serving":
    from pipelines.settings.load import open_site_store
    from steps.lib.serving import Serving

    return Serving(os.environ, open_site_store(site).uri)


if __name__ == "__main__":
    sys.exit(main())
