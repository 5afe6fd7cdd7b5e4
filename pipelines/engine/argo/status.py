"""A Workflow's status, in the words of the local engine. Pure: dicts in, values out.

Argo names a node by its path: `run.tokenize(0:item)(1)` is the second attempt of the first item of
tokenize. A node of type Retry stands for a task or an item, and its children are the attempts.
"""

import base64
import gzip
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipelines.engine.events import EXIT_NODE, Phase
from steps.lib.kube import Object
from steps.runner import CACHE_FILE

_PATH = re.compile(r"(?P<task>[A-Za-z0-9_-]+)(?:\((?P<item>\d+):.*\))?", re.DOTALL)
_ATTEMPT = re.compile(r"\((\d+)\)$")
_PODS = ("Pod", "Container")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One pod."""

    node_id: str
    """Argo's; the pod has it as an annotation."""
    phase: Phase
    started: float
    finished: float | None
    exit_code: int | None
    message: str
    """Argo's: why it waits, or why it failed."""


@dataclass(frozen=True, kw_only=True)
class NodeView:
    """A task, an item of a task that fans out, or the exit handler."""

    name: str
    phase: Phase
    message: str
    finished: float | None
    outputs: dict[str, str] = field(default_factory=dict)
    cache: str = ""
    attempts: tuple[Attempt, ...] = ()


def views(workflow: Object) -> list[NodeView]:
    """Every node that has begun or been decided upon, in the order of their starts."""
    run, nodes = workflow["metadata"]["name"], _nodes(workflow)
    attempts_of_others = {child for n in nodes.values() if n["type"] == "Retry" for child in n.get("children") or []}
    found = []
    for node in sorted(nodes.values(), key=lambda n: (n.get("startedAt") or "", n["name"])):
        name = _name(run, node["name"])
        if name and node["id"] not in attempts_of_others and node["type"] != "DAG":
            found.append(_view(name, node, nodes))
    return found


def workflow_message(workflow: Object) -> str:
    """What Argo says of the whole."""
    return " ".join(str(workflow.get("status", {}).get("message", "")).split())


def _nodes(workflow: Object) -> dict[str, Any]:
    """Of status.nodes, which Argo compresses when they are many."""
    status = workflow.get("status", {})
    packed = status.get("compressedNodes")
    if packed:
        nodes: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
        return nodes
    return status.get("nodes") or {}


def _name(run: str, path: str) -> str:
    """The local engine's name of a node; "" for the DAG itself."""
    if path == f"{run}.onExit" or path.startswith(f"{run}.onExit("):
        return EXIT_NODE
    found = _PATH.fullmatch(path.removeprefix(f"{run}.")) if path.startswith(f"{run}.") else None
    if not found:
        return ""
    return found["task"] + (f".{found['item']}" if found["item"] else "")


def _view(name: str, node: Object, nodes: dict[str, Any]) -> NodeView:
    if node["type"] == "Retry":
        children = [nodes[child] for child in node.get("children") or [] if child in nodes]
        pods = [child for child in children if child["type"] in _PODS and _ATTEMPT.search(child["name"])]
        attempts = sorted(pods, key=lambda pod: int(_ATTEMPT.search(pod["name"])[1]))  # type: ignore[index]  # all match
    else:
        attempts = [node] if node["type"] in _PODS else []
    last = attempts[-1] if attempts else node
    outputs = {p["name"]: p.get("value", "") for p in (node.get("outputs") or {}).get("parameters") or []}
    cache = outputs.pop(CACHE_FILE, "")
    return NodeView(
        name=name,
        phase=_phase(node),
        message=" ".join((node.get("message") or last.get("message") or "").split()),
        finished=_seconds(node.get("finishedAt")),
        outputs=outputs,
        cache=cache,
        attempts=tuple(_attempt(pod) for pod in attempts),
    )


def _attempt(pod: Object) -> Attempt:
    code = (pod.get("outputs") or {}).get("exitCode")
    return Attempt(
        node_id=pod["id"],
        phase=_phase(pod),
        started=_seconds(pod.get("startedAt")) or 0.0,
        finished=_seconds(pod.get("finishedAt")),
        exit_code=int(code) if code is not None else None,
        message=" ".join((pod.get("message") or "").split()),
    )


def _phase(node: Object) -> Phase:
    return Phase(node.get("phase") or "Pending")


def _seconds(stamp: str | None) -> float | None:
    return datetime.fromisoformat(stamp).timestamp() if stamp else None
