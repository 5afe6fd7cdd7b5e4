"""A training that the clock starts: the main job's Workflow inside a CronWorkflow.

A tick runs the very workflow that `train` submits, by the same records: with no new data every step is a hit, and
nothing trains. Its run id is the Workflow's name, which the cluster makes of this one's and the time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import yaml

from pipelines.build import pipeline
from pipelines.names import dns_name
from pipelines.settings.load import Loaded
from pipelines.settings.recipe import Recipe
from pipelines.settings.site import Site
from pipelines.ticks import SHARED
from steps.lib.errors import UserError
from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import CRON_WORKFLOW, WORKFLOW

MANAGER = "tripod-retrain"
LATE_S = 3600
"""A tick that could not be started for this long, since the cluster was down, is left out."""
_KEPT = 5
"""Workflows that are kept of each kind of end; records in the store stay."""
_NAME_CHARS = 52
"""A tick's workflow is named by this name and ten digits more, and names end at 63."""
_LABEL = "workflows.argoproj.io/cron-workflow"
"""Argo's, on the workflows of ticks."""
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 6))
_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day of week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}


@dataclass(frozen=True, kw_only=True)
class Tick:
    """One workflow that the clock has started."""

    run_id: str
    phase: str
    started: str
    """RFC 3339; "" before it starts."""


def cron_name(recipe: str) -> str:
    """Of the CronWorkflow of a recipe."""
    return f"retrain-{dns_name(recipe)}"[:_NAME_CHARS].rstrip("-")


def tick_document(model: Loaded[Recipe], site: Loaded[Site], tree: str = "") -> dict[str, Any]:
    """The Workflow of every tick but for its name: pure.

    Args:
        tree: digest of the sources that pods run.
    """
    document: dict[str, Any] = yaml.safe_load(pipeline(model, site, cron_name(model.name), tree).workflow.to_yaml())
    return document


def cron_workflow(document: dict[str, Any], *, schedule: str, zone: str, shared: str = "") -> Object:
    """The CronWorkflow that runs `document`: pure.

    Args:
        schedule: five fields, as cron has them.
        zone: IANA name of the time zone that they are meant in.
        shared: digest of what its runs' records are begun with (ticks.py).

    Raises:
        UserError: the schedule or the zone is none.
    """
    check_schedule(schedule)
    check_zone(zone)
    labels = document["metadata"].get("labels", {})
    return {
        "apiVersion": CRON_WORKFLOW.api_version,
        "kind": CRON_WORKFLOW.kind,
        "metadata": {
            "name": document["metadata"]["name"],
            "namespace": document["metadata"]["namespace"],
            "labels": labels | {"app.kubernetes.io/managed-by": "tripod"},
        },
        "spec": {
            "schedules": [schedule],
            "timezone": zone,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": LATE_S,
            "successfulJobsHistoryLimit": _KEPT,
            "failedJobsHistoryLimit": _KEPT,
            "workflowMetadata": {"labels": labels} | ({"annotations": {SHARED: shared}} if shared else {}),
            "workflowSpec": document["spec"],
        },
    }


def check_zone(zone: str) -> None:
    """Raises UserError when there is no such time zone."""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as e:
        raise UserError(f"--zone: got {zone!r}, allowed are IANA names such as Europe/Berlin") from e


def check_schedule(schedule: str) -> None:
    """Raises UserError when a schedule is not five fields of cron; Argo itself would take it and never run it."""
    words = schedule.split()
    if len(words) != len(_FIELDS):
        raise UserError(
            f"--schedule: got {schedule!r}, allowed are five fields, as in '0 2 * * *' (minute hour day month weekday)"
        )
    for word, (what, least, most) in zip(words, _FIELDS, strict=True):
        if not all(_is_part(part, least, most, _NAMES.get(what, [])) for part in word.split(",")):
            raise UserError(
                f"--schedule: {what}: got {word!r}, allowed are *, {least} to {most}, ranges and steps"
                + (", Sunday is 0" if most == 6 else "")
            )


def _is_part(part: str, least: int, most: int, names: list[str]) -> bool:
    span, slash, step = part.partition("/")
    if slash and not (step.isascii() and step.isdigit() and int(step) > 0):
        return False
    if span in ("*", "?"):
        return True
    ends = [_number(end, names, least) for end in span.split("-")]
    known = [end for end in ends if end is not None]
    return len(known) == len(ends) <= 2 and known == sorted(known) and all(least <= end <= most for end in known)


def _number(text: str, names: list[str], least: int) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + least
    return int(text) if text.isascii() and text.isdigit() else None


def install(cluster: Cluster, body: Object) -> None:
    """Create it, or bring what is there up to date; whether it is suspended stays as it is."""
    cluster.apply(CRON_WORKFLOW, body, manager=MANAGER, force=True)


def find(cluster: Cluster, site: Site, recipe: str) -> Object:
    """What is installed. Raises UserError when nothing is."""
    there = cluster.get(CRON_WORKFLOW, site.argo.namespace, cron_name(recipe))
    if there is None:
        raise UserError(
            f"--model: {recipe} is not retrained by the clock in namespace {site.argo.namespace}; "
            f"`python -m pipelines.retrain install --model {recipe}` makes it so"
        )
    return there


def suspend(cluster: Cluster, there: Object, *, on: bool) -> None:
    """Whether ticks are left out from now on."""
    meta = there["metadata"]
    cluster.patch(CRON_WORKFLOW, meta["namespace"], meta["name"], {"spec": {"suspend": on}})


def remove(cluster: Cluster, there: Object) -> None:
    """No more ticks; what runs goes on, it is not deleted with its schedule."""
    meta = there["metadata"]
    suspend(cluster, there, on=True)  # a tick that came between would be deleted with it
    for tick in tick_workflows(cluster, there):
        if not tick.get("status", {}).get("finishedAt"):
            cluster.patch(
                WORKFLOW, meta["namespace"], tick["metadata"]["name"], {"metadata": {"ownerReferences": None}}
            )
    cluster.delete(CRON_WORKFLOW, meta["namespace"], meta["name"], uid=meta["uid"])


def tick_workflows(cluster: Cluster, there: Object) -> list[Object]:
    """The workflows of its ticks that the cluster still has."""
    meta = there["metadata"]
    return cluster.list(WORKFLOW, meta["namespace"], labels={_LABEL: meta["name"]})


def ticks(found: Sequence[Object]) -> list[Tick]:
    """Of those workflows, the newest first."""
    made = [
        Tick(
            run_id=w["metadata"]["name"],
            phase=w.get("status", {}).get("phase") or "Pending",
            started=w.get("status", {}).get("startedAt") or "",
        )
        for w in found
    ]
    return sorted(made, key=lambda tick: tick.run_id, reverse=True)
