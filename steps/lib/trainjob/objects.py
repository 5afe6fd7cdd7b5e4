"""Reading Kubernetes objects: conditions, times, and what a training pod tells. Pure."""

from collections.abc import Sequence
from typing import Any

from steps.lib.kube import Object, seconds

CONTAINER = "node"
"""The training container's name in the runtime; Trainer looks for it too."""
SETTLE_S = 60.0
"""Odd moments shorter than this are on their way to something else."""
_IMAGE_TROUBLE = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)


def living(pods: Sequence[Object]) -> list[Object]:
    """Pods that hold their node: not ended, maybe terminating."""
    return [pod for pod in pods if pod.get("status", {}).get("phase") in ("Pending", "Running", "Unknown")]


def index(pod: Object) -> int:
    """Which node of the gang a pod is."""
    return int(pod["metadata"].get("labels", {}).get("batch.kubernetes.io/job-completion-index", 0))


def exit_code(pod: Object) -> int | None:
    """Exit code of the training container; None while it runs."""
    code = terminated(pod).get("exitCode")
    return None if code is None else int(code)


def pod_name(pod: Object) -> str:
    """Its name."""
    return str(pod["metadata"]["name"])


def node_name(pod: Object) -> str:
    """The node that it runs on; "?" before it is placed."""
    return str(pod["spec"].get("nodeName") or "?")


def terminated(pod: Object) -> dict[str, Any]:
    for status in pod.get("status", {}).get("containerStatuses") or ():
        if status.get("name") == CONTAINER:
            return (status.get("state") or {}).get("terminated") or {}
    return {}


def condition(thing: Object | None, kind: str) -> dict[str, Any] | None:
    for condition in ((thing or {}).get("status") or {}).get("conditions") or ():
        if condition["type"] == kind:
            return dict(condition)
    return None


def is_true(thing: Object | None, kind: str) -> dict[str, Any] | None:
    """The condition when it is True."""
    found = condition(thing, kind)
    return found if found and found["status"] == "True" else None


def trouble(pod: Object, now: float) -> str:
    """Why a pod will not start by itself; "" when it may."""
    for status in pod["status"].get("containerStatuses") or ():
        waiting = status.get("state", {}).get("waiting") or {}
        if waiting.get("reason") in _IMAGE_TROUBLE:
            return f"{pod_name(pod)}: {waiting['reason']}: {waiting.get('message', '')}"
    unplaced = condition(pod, "PodScheduled")
    if not unplaced or unplaced["status"] != "False" or unplaced.get("reason") != "Unschedulable":
        return ""
    if now - seconds(unplaced.get("lastTransitionTime")) < SETTLE_S:
        return ""
    selector = pod["spec"].get("nodeSelector") or {}
    asked = ", ".join(f"{key}={value}" for key, value in sorted(selector.items())) or "none in particular"
    return f"{pod_name(pod)} fits on no node, it asks for {asked}: {unplaced.get('message', '')}"
