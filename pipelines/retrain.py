"""`python -m pipelines.retrain install|show|suspend|resume|remove --model NAME`: let the clock train a model again."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.cli import guarded

if TYPE_CHECKING:
    from steps.lib.kube import Cluster, Object
    from steps.lib.store import Store

SCHEDULE = "0 2 * * *"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m pipelines.retrain",
        description="Let the clock train a model again. With no new data nothing trains.",
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--model", required=True, metavar="NAME|FILE", help="the recipe")
    common.add_argument("--site", default="", metavar="NAME|FILE", help="where ($TRIPOD_SITE, else local)")
    common.add_argument("--set", action="append", default=[], metavar="path=value", help="override a setting")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    install = verbs.add_parser("install", parents=[common], help="make the schedule, or bring it up to date")
    install.add_argument("--schedule", default=SCHEDULE, metavar="CRON", help=f"five fields (default: '{SCHEDULE}')")
    install.add_argument(
        "--zone", default="", metavar="ZONE", help="IANA time zone (default: the site's capacity.zone)"
    )
    install.add_argument("--dry-run", action="store_true", help="print the YAML; contact nothing")
    show = verbs.add_parser("show", parents=[common], help="the schedule and its last runs")
    show.add_argument("--json", action="store_true", help="print JSON on stdout")
    verbs.add_parser("suspend", parents=[common], help="leave its ticks out; what runs goes on")
    verbs.add_parser("resume", parents=[common], help="take its ticks again")
    verbs.add_parser("remove", parents=[common], help="no more ticks; what runs goes on")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from pipelines import schedule
    from pipelines.clusters import compute_cluster
    from pipelines.settings.load import load_site, open_site_store
    from pipelines.settings.site import Site
    from steps.lib.errors import UserError

    # a schedule can be stopped whatever has become of its recipe
    site = load_site(args.site, [word for word in args.set if word.split(".")[0] in Site.model_fields])
    if site.value.engine != "argo":
        raise UserError(
            f"site {site.name}: runs on this machine, which keeps no schedule; a site with engine argo does"
        )
    if args.verb == "install":
        return _install(args)
    with compute_cluster(site.value) as cluster:
        there = schedule.find(cluster, site.value, Path(args.model).name.removesuffix(".toml"))
        name = there["metadata"]["name"]
        if args.verb == "show":
            return _show(args, cluster, there, open_site_store(site.value))
        if args.verb == "remove":
            schedule.remove(cluster, there)
            print(f"{name}: removed; runs go on, and their records stay")
        else:
            schedule.suspend(cluster, there, on=args.verb == "suspend")
            print(f"{name}: {'suspended; `resume` takes its ticks again' if args.verb == 'suspend' else 'resumed'}")
    return 0


def _install(args: argparse.Namespace) -> int:
    import yaml

    from pipelines import schedule
    from pipelines.build import pipeline
    from pipelines.clusters import compute_cluster
    from pipelines.engine.recorder import RunInfo
    from pipelines.execute import source_revision
    from pipelines.plan import make_plan
    from pipelines.settings.load import load, open_site_store, pods_store_uri
    from pipelines.ticks import Shared
    from steps.lib import tree
    from steps.lib.digest import sha256_hex
    from steps.lib.folder import put_blob

    model, site = load(args.model, args.site, args.set)
    packed = tree.pack(tree.root())
    make_plan(pipeline(model, site, "retrain"), model.value, "retrain", None, pods_store_uri(site))  # refuses
    zone = args.zone or site.value.capacity.zone
    document = schedule.tick_document(model, site, sha256_hex(packed))
    info = RunInfo(
        run_id=document["metadata"]["name"],
        command=["python", "-m", "pipelines.retrain", *sys.argv[1:]],
        recipe=model.name,
        site=site.name,
        settings={**model.value.model_dump(mode="json"), **site.value.model_dump(mode="json")},
        tree=source_revision(Path.cwd()),
        started=0,
    )
    shared = Shared(info=info, document=document).packed()
    body = schedule.cron_workflow(document, schedule=args.schedule, zone=zone, shared=sha256_hex(shared))
    if args.dry_run:
        yaml.safe_dump(body, sys.stdout, sort_keys=False)
        return 0
    store = open_site_store(site.value)
    for blob in (packed, shared):
        put_blob(store, blob)
    with compute_cluster(site.value) as cluster:
        schedule.install(cluster, body)
    print(
        f"{body['metadata']['name']}: trains {model.name} at '{args.schedule}', {zone}, with the sources as they are now"
    )
    print(f"next: python -m pipelines.retrain show --model {args.model}")
    return 0


def _show(args: argparse.Namespace, cluster: "Cluster", there: "Object", store: "Store") -> int:
    from pipelines import schedule
    from pipelines.ticks import take_up

    found = schedule.tick_workflows(cluster, there)
    ticks = schedule.ticks(found)
    known = [workflow["metadata"]["name"] for workflow in found if take_up(store, workflow)]
    spec, last = there["spec"], there.get("status", {}).get("lastScheduledTime") or ""
    suspended = bool(spec.get("suspend"))
    if args.json:
        shown = {
            "name": there["metadata"]["name"],
            "schedule": spec["schedules"],
            "zone": spec["timezone"],
            "suspended": suspended,
            "last": last,
            "runs": [tick.__dict__ for tick in ticks],
        }
        print(json.dumps(shown, indent=1))
        return 0
    state = "suspended" if suspended else "active"
    print(
        f"{there['metadata']['name']}  {state}  '{', '.join(spec['schedules'])}' {spec['timezone']}  last {last or 'never'}"
    )
    for tick in ticks:
        print(f"  {tick.run_id}  {tick.phase}  {tick.started}".rstrip())
    if not ticks:
        print("  no run yet")
    elif known:
        print(f"next: python -m pipelines.runs status {max(known)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
