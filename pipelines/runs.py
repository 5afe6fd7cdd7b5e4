"""`python -m pipelines.runs list|status|logs|cancel|resume`: look at runs, stop them, go on with them.

Everything is read from the store, so it works from any machine that reaches it; only `cancel` has to
be on the machine whose process runs the workflow.
"""

import argparse
import sys
from collections.abc import Sequence

from pipelines.cli import guarded


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="python -m pipelines.runs", description="Look at runs, stop them, resume them.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--site", default="", metavar="NAME|FILE", help="whose store ($TRIPOD_SITE, else local)")
    common.add_argument("--json", action="store_true", help="print JSON on stdout")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("list", parents=[common], help="all runs, the newest first")
    status = verbs.add_parser("status", parents=[common], help="what each step of a run does or did")
    logs = verbs.add_parser("logs", parents=[common], help="what the steps of a run wrote")
    cancel = verbs.add_parser("cancel", parents=[common], help="stop a run; its finished steps are kept")
    resume = verbs.add_parser("resume", parents=[common], help="run it again; finished steps are not repeated")
    for verb in (status, logs, cancel, resume):
        verb.add_argument("run", metavar="RUN", help="its id, as `list` shows it")
    logs.add_argument("step", metavar="STEP", nargs="?", default="", help="only this step, or one item: tokenize.3")
    for verb in (status, logs):
        verb.add_argument("--follow", action="store_true", help="go on until the run has ended")
    resume.add_argument("-v", "--verbose", action="store_true", help="show what the steps print")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit code."""
    args = parser().parse_args(argv)
    return guarded(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from pipelines import runs_commands as commands
    from pipelines.settings.load import load_site, open_site_store

    site = load_site(args.site).value
    store = open_site_store(site)
    if args.verb == "list":
        return commands.show_list(store, site, as_json=args.json)
    if args.verb == "status":
        return commands.show_status(store, site, args.run, follow=args.follow, as_json=args.json)
    if args.verb == "logs":
        return commands.show_logs(store, site, args.run, args.step, follow=args.follow, as_json=args.json)
    if args.verb == "cancel":
        return commands.cancel(store, site, args.run, grace_s=site.run.grace_s)
    return commands.resume(store, site, args.run, grace_s=site.run.grace_s, as_json=args.json, verbose=args.verbose)


if __name__ == "__main__":
    sys.exit(main())
