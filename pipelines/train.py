"""`python -m pipelines.train --model NAME`: from raw text to a served model.

    settings -> plan -> workflow (YAML) -> engine -> summary
"""

import argparse
import sys
from collections.abc import Sequence

from pipelines.cli import guarded


def parser() -> argparse.ArgumentParser:
    """The command line; a test freezes it."""
    top = argparse.ArgumentParser(
        prog="python -m pipelines.train", description="Train, evaluate, register and serve a model from raw text."
    )
    top.add_argument("--model", required=True, metavar="NAME|FILE", help="recipe: a name in config/models, or a file NAME.toml")
    top.add_argument("--site", default="", metavar="NAME|FILE", help="where it runs (default: $TRIPOD_SITE, else local)")
    top.add_argument("--run-id", default="", help="a name for this run (default: recipe, time and four digits)")
    top.add_argument("--set", action="append", default=[], metavar="path=value", help="override a setting; JSON, else a string")
    top.add_argument("--dry-run", action="store_true", help="print the plan to stderr and the workflow's YAML to stdout; start nothing")
    top.add_argument("-v", "--verbose", action="store_true", help="show what the steps print")
    top.add_argument("--json", action="store_true", help="print events as JSON lines on stdout")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    return guarded(lambda: _train(args))


def _train(args: argparse.Namespace) -> int:
    from pipelines.build import pipeline
    from pipelines.names import MAX_RUN_ID_CHARS, check_run_id, new_run_id
    from pipelines.plan import make_plan
    from pipelines.settings.load import load, store_uri
    from steps.lib.errors import Exit, UserError
    from steps.lib.store import open_store

    model, site = load(args.model, args.site, args.set)
    run_id = check_run_id(args.run_id) if args.run_id else new_run_id(model.name)
    uri = store_uri(site.value)
    pipe = pipeline(model, site, run_id)
    if args.dry_run:
        store = open_store(uri) if uri.startswith("file://") else None
        print("\n".join(make_plan(pipe, model.value, run_id, store, uri).lines()), file=sys.stderr)
        sys.stdout.write(pipe.workflow.to_yaml())
        return Exit.DONE
    if site.value.engine != "local":
        raise UserError(
            f"site {site.name}: engine is {site.value.engine!r}, this version runs workflows with 'local' only; "
            "--dry-run prints the workflow's YAML for Argo"
        )
    raise AssertionError((args, MAX_RUN_ID_CHARS))


if __name__ == "__main__":
    sys.exit(main())
