"""Why a pod does not start, from its status and its events. Pure.

Argo tells of a pod that fits nowhere and of a step's image that cannot be pulled; of an init container's image,
and of a Secret or ConfigMap that is not there, it says `PodInitializing` for ever.
"""

from collections.abc import Sequence

from steps.lib.kube import Object

USUAL = ("", "ContainerCreating", "PodInitializing")
"""What says nothing: every pod starts that way."""


def why_it_waits(pod: Object | None, events: Sequence[Object]) -> str:
    """One line, or "" when nothing is wrong yet."""
    if pod is None:
        return ""
    status = pod.get("status", {})
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in containers:
        waiting = container.get("state", {}).get("waiting") or {}
        if waiting.get("reason", "") not in USUAL:
            return _line(waiting["reason"], waiting.get("message", ""))
    for condition in status.get("conditions") or []:
        if condition.get("reason") == "Unschedulable":
            return _line("Unschedulable", condition.get("message", ""))
    warnings = [event for event in events if event.get("type") == "Warning"]
    last = max(warnings, key=_seen, default=None)
    return _line(last.get("reason", ""), last.get("message", "")) if last else ""


def _seen(event: Object) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or ""


def _line(reason: str, message: str) -> str:
    return " ".join(": ".join(part for part in (reason, message) if part).split())
