"""`python -m pipelines.publish`: every step as a versioned WorkflowTemplate, for the DAGs of others."""

import argparse
import sys
from collections.abc import Sequence

from pipelines.cli import guarded


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m pipelines.publish",
        description="Publish every step as a WorkflowTemplate in the team's namespace. A version never changes.",
    )
    top.add_argument("--site", default="", metavar="NAME|FILE", help="whose cluster ($TRIPOD_SITE, else local)")
    top.add_argument("--set", action="append", default=[], metavar="path=value", help="override a setting of the site")
    top.add_argument("--for-all", action="store_true", help="as ClusterWorkflowTemplates, with the images' own sources")
    top.add_argument("--dry-run", action="store_true", help="print the YAML; contact nothing")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    import yaml

    from pipelines.clusters import compute_cluster
    from pipelines.published import STEP, publish, published
    from pipelines.settings.load import load_site, open_site_store, pods_store_uri
    from steps.lib import tree
    from steps.lib.digest import sha256_hex
    from steps.lib.errors import UserError
    from steps.lib.folder import put_blob

    site = load_site(args.site, args.set)
    if site.value.engine != "argo":
        raise UserError(f"site {site.name}: runs on this machine; a site with engine argo has templates to publish to")
    pods_store_uri(site)
    packed = b"" if args.for_all else tree.pack(tree.root())
    templates = published(site.value, tree=sha256_hex(packed) if packed else "", for_all=args.for_all)
    if args.dry_run:
        yaml.safe_dump_all(templates, sys.stdout, sort_keys=False)
        return 0
    if packed:
        put_blob(open_site_store(site.value), packed)
    with compute_cluster(site.value) as cluster:
        news = publish(cluster, templates)
    for template, new in zip(templates, news, strict=True):
        meta = template["metadata"]
        scope = ", clusterScope: true" if args.for_all else ""
        ref = f"templateRef: {{name: {meta['name']}, template: {meta['labels'][STEP]}{scope}}}"
        print(f"{'new' if new else 'there'}  {ref}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
