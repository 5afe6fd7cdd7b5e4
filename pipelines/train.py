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
    from steps.lib.store import Store


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
    top.add_argument("--detach", action="store_true", help="on a cluster: submit and return; `runs status` follows")
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
    from pipelines.settings.load import load, open_site_store, pods_store_uri, store_uri
    from pipelines.view import tell
    from steps.lib import tree
    from steps.lib.digest import sha256_hex
    from steps.lib.errors import Exit, UserError
    from steps.lib.folder import put_blob
    from steps.lib.store import check_bucket

    model, site = load(args.model, args.site, args.set)
    run_id = check_run_id(args.run_id) if args.run_id else new_run_id(model.name)
    on_argo = site.value.engine == "argo"
    uri = pods_store_uri(site) if on_argo else store_uri(site.value)
    if args.detach and not on_argo:
        raise UserError(
            f"--detach: site {site.name} runs on this machine, where the run ends with the command; a site with engine argo allows it"
        )
    packed = tree.pack(tree.root()) if on_argo else b""
    pipe = pipeline(model, site, run_id, sha256_hex(packed) if packed else "")
    if not args.dry_run and not on_argo:
        check_machine(pipe)
    store = None
    if args.dry_run and uri.startswith("s3://"):
        check_bucket(uri)
    else:
        store = open_site_store(site.value)
    plan = make_plan(pipe, model.value, run_id, store, uri)
    if not args.dry_run and not plan.hits("train"):
        from pipelines.gpu_queue import queue_lines

        plan = plan.with_lines(queue_lines(model.value.scale.nodes, site.value))
    if not args.json or args.dry_run:
        tell("\n".join(plan.lines()), sys.stderr)
    text = pipe.workflow.to_yaml()
    if store is None or args.dry_run:
        if sys.stdout.isatty():
            print(
                f"the workflow is {text.count(chr(10))} lines of YAML; add `> workflow.yaml` to see it", file=sys.stderr
            )
        else:
            sys.stdout.write(text)
        return Exit.DONE
    if packed:
        put_blob(store, packed)
    return _run(args, model, site, text, run_id, store)


def _run(
    args: argparse.Namespace, model: "Loaded[Recipe]", site: "Loaded[Site]", text: str, run_id: str, store: "Store"
) -> int:
    """Run the workflow. Its only input is the YAML, the same that --dry-run prints."""
    import yaml

    from pipelines.engine.recorder import RunInfo
    from pipelines.execute import execute, source_revision
    from pipelines.summary import summary
    from pipelines.view import choose_view, tell
    from steps.lib.errors import Exit

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
    document = yaml.safe_load(text)
    view = choose_view(json_lines=args.json, verbose=args.verbose)
    if site.value.engine == "local":
        outcome = execute(document, store=store, info=info, view=view, grace_s=site.value.run.grace_s)
    else:
        from pipelines.clusters import open_workflows
        from pipelines.execute_argo import execute_on_argo
        from pipelines.runs_commands import say_detached

        with open_workflows(site.value) as workflows:
            followed = execute_on_argo(
                document, workflows=workflows, store=store, info=info, view=view, detach=args.detach
            )
        if followed is None:
            return say_detached(run_id)
        outcome = followed
    if outcome.exit_code == Exit.DONE and not args.json:
        name = model.value.serving.name or model.name
        tell("\n".join(summary(run_id, args.model, name, outcome.nodes, time.time() - started)), sys.stdout)
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main())
