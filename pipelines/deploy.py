"""`python -m pipelines.deploy run|status|stop`: serve a registered model, see what serves, end it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.cli import guarded

if TYPE_CHECKING:
    from pipelines.settings.site import Site


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
    status = verbs.add_parser("status", parents=[common], help="what serves")
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
    from pipelines.served import servers
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
        "gpus": str(serving.gpus),
        "replicas": str(serving.replicas),
        "max_model_len": str(serving.max_model_len),
        "prompt": serving.prompt,
        "max_tokens": str(serving.max_tokens),
    }
    code = runner.main(["deploy", *(f"--{field}={value}" for field, value in fields.items())], _env(site.value, uri))
    if code == 0:
        stays = any(row.name == fields["name"] for row in servers(site.value).all()[0])
        words = (
            f"it stays; `python -m pipelines.deploy stop {fields['name']}` ends it" if stays else "the server has ended"
        )
        print(words, file=sys.stderr)
    return code


def _env(site: "Site", uri: str) -> dict[str, str]:
    """Of the step. What its pods get must be the site's alone: it tells one server from another."""
    from pipelines.served import gpu_kubeconfig

    if site.inference.target != "kubernetes":
        return {**os.environ, **site.step_env(uri)}
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TRIPOD_"))}
    reach = {"TRIPOD_GPU_KUBECONFIG": gpu_kubeconfig(site), "TRIPOD_GPU_CONTEXT": site.gpu.context}
    return own | site.step_env(uri) | reach


def _status(args: argparse.Namespace) -> int:
    from pipelines.served import servers
    from pipelines.settings.load import load_site

    found = servers(load_site(args.site).value)
    rows, problems = found.all()
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if args.json:
        print(json.dumps([row.as_json for row in rows], indent=1))
        return 0
    if not rows and not problems:
        print(f"nothing serves {found.where}; python -m pipelines.deploy run --model NAME starts a server")
    for row in rows:
        print("\n".join(row.lines))
    return 0


def _stop(args: argparse.Namespace) -> int:
    from pipelines.served import servers
    from pipelines.settings.load import load_site

    print(servers(load_site(args.site).value).stop(args.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
