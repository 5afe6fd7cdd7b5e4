"""`python -m pipelines.train --model NAME`: from raw text to a served model.

settings -> plan -> workflow (YAML) -> engine -> summary
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.cli import guarded

if TYPE_CHECKING:
    from pipelines.settings.load import Loaded
    from pipelines.settings.recipe import Recipe
    from pipelines.settings.site import Site


def parser() -> argparse.ArgumentParser:
    """The command line; a test freezes it."""
    top = argparse.ArgumentParser(
        prog="python -m pipelines.train", description="Train, evaluate, register and serve a model from raw text."
    )
    top.add_argument(
        "--model", required=True, metavar="NAME|FILE", help="recipe: a name in config/models, or a file NAME.toml"
    )
    top.add_argument(
        "--site", default="", metavar="NAME|FILE", help="where it runs (default: $TRIPOD_SITE, else local)"
    )
    top.add_argument("--run-id", default="", help="a name for this run (default: recipe, time and four digits)")
    top.add_argument(
        "--set", action="append", default=[], metavar="path=value", help="override a setting; JSON, else a string"
    )
    top.add_argument(
        "--dry-run",
        action="store_true",
        help="print the plan to stderr and the workflow's YAML to stdout; start nothing",
    )
    top.add_argument("-v", "--verbose", action="store_true", help="show what the steps print")
    top.add_argument("--json", action="store_true", help="print events as JSON lines on stdout")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    return guarded(lambda: _train(args))


def _train(args: argparse.Namespace) -> int:
    from pipelines.build import pipeline
    from pipelines.names import check_run_id, new_run_id
    from pipelines.plan import check_machine, make_plan
    from pipelines.settings.load import load, store_uri
    from steps.lib.errors import Exit, UserError
    from steps.lib.store import open_store

    model, site = load(args.model, args.site, args.set)
    run_id = check_run_id(args.run_id) if args.run_id else new_run_id(model.name)
    uri = store_uri(site.value)
    pipe = pipeline(model, site, run_id)
    if not args.dry_run and site.value.engine != "local":
        raise UserError(
            f"site {site.name}: engine is {site.value.engine!r}, this version runs workflows with 'local' only; "
            "--dry-run prints the workflow for Argo"
        )
    if not args.dry_run:
        check_machine(pipe)
    contacted = not args.dry_run or uri.startswith("file://")
    plan = make_plan(pipe, model.value, run_id, open_store(uri) if contacted else None, uri)
    if not args.json or args.dry_run:
        print("\n".join(plan.lines()), file=sys.stderr)
    if args.dry_run:
        sys.stdout.write(pipe.workflow.to_yaml())
        return Exit.DONE
    return _run(args, model, site, pipe.workflow.to_yaml(), run_id)


def _run(args: argparse.Namespace, model: "Loaded[Recipe]", site: "Loaded[Site]", text: str, run_id: str) -> int:
    """Run the workflow here. Its only input is the YAML, the same that --dry-run prints."""
    import yaml

    from pipelines.engine.recorder import RunInfo
    from pipelines.execute import execute, source_revision
    from pipelines.settings.load import store_uri
    from pipelines.summary import summary
    from pipelines.view import choose_view
    from steps.lib.errors import Exit
    from steps.lib.store import open_store

    started = time.time()
    info = RunInfo(
        run_id=run_id,
        command=["python", "-m", "pipelines.train", *sys.argv[1:]],
        recipe=model.name,
        site=site.name,
        settings={**model.value.model_dump(mode="json"), **site.value.model_dump(mode="json")},
        tree=source_revision(Path.cwd()),
        started=started,
    )
    outcome = execute(
        yaml.safe_load(text),
        store=open_store(store_uri(site.value)),
        info=info,
        view=choose_view(json_lines=args.json, verbose=args.verbose),
        grace_s=site.value.run.grace_s,
    )
    if outcome.exit_code == Exit.DONE and not args.json:
        name = model.value.serving.name or model.name
        print("\n".join(summary(run_id, args.model, name, outcome.nodes, time.time() - started)))
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
