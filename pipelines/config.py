"""`python -m pipelines.config show`: the settings of a run, and where each value comes from."""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipelines.cli import guarded


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m pipelines.config", description="Show settings.")
    verbs = top.add_subparsers(dest="verb", required=True)
    show = verbs.add_parser("show", help="print the settings of a recipe and a site")
    show.add_argument("--model", default="", help="recipe NAME or FILE.toml; left out: the site alone")
    show.add_argument("--site", default="", help="site NAME or FILE.toml (default: $TRIPOD_SITE, else local)")
    show.add_argument("--set", action="append", default=[], metavar="path=value", help="as for train")
    show.add_argument("--origin", action="store_true", help="say for each value: file, --set or default")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    return guarded(lambda: _show(args))


def _show(args: argparse.Namespace) -> int:
    from pipelines.settings.load import load, load_site, store_uri

    if args.model:
        model, site = load(args.model, args.site, args.set)
        loaded: list[Any] = [model, site]
    else:
        site = load_site(args.site, args.set)
        loaded = [site]
    values = {
        path: (value, part.origin(path))
        for part in loaded
        for path, value in _leaves(part.value.model_dump(mode="json"))
    }
    if not site.value.store.uri:
        values["store.uri"] = (store_uri(site.value), "$TRIPOD_STORE" if "TRIPOD_STORE" in os.environ else "default")
    if args.json:
        print(
            json.dumps(
                {path: {"value": v, "origin": o} if args.origin else v for path, (v, o) in values.items()}, indent=1
            )
        )
        return 0
    width = max(len(f"{path} = {json.dumps(value)}") for path, (value, _) in values.items())
    for path, (value, origin) in values.items():
        line = f"{path} = {json.dumps(value, ensure_ascii=False)}"
        print(f"{line:<{min(width, 60)}}  # {origin}" if args.origin else line)
    return 0


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


if __name__ == "__main__":
    sys.exit(main())
