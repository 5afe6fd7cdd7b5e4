"""A Workflow's status, in the words of the local engine. Pure: dicts in, values out.

Argo names a node by its path: `run.tokenize(0:item)(1)` is the second attempt of the first item of
tokenize. A node of type Retry stands for a task or an item, and its children are the attempts.

    type       here                          type             here
    Pod        a node with one attempt       Skipped          a node that did not run
    Retry      a node, its children attempts TaskGroup        a task that fans out, its children the items
    DAG        the workflow itself: left out
"""

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipelines.engine.events import EXIT_NODE, Phase
from steps.lib.errors import UserError
from steps.lib.kube import Object, seconds
from steps.runner import CACHE_FILE

ENDED = ("Succeeded", "Failed", "Error")
"""Phases of a Workflow that has ended."""
_PATH = re.compile(r"(?P<task>[A-Za-z0-9_-]+)(?:\((?P<item>\d+)(?::.*)?\))?", re.DOTALL)
_ATTEMPT = re.compile(r"\((\d+)\)$")
_MAX_PREFIX_CHARS = 242
"""Of a pod's name before the hash (Argo 4.0, workflow/util/pod_name.go)."""
Nodes = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One pod."""

    pod: str
    """Its name."""
    phase: Phase
    started: float
    """When Argo made it, seconds since the epoch."""
    finished: float | None
    exit_code: int | None
    """None when Argo could not learn it."""
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
    items: tuple[str, ...] | None = None
    """Names of the nodes of a task that fans out."""


def phase_of(workflow: Object) -> str:
    """Pending, Running, Succeeded, Failed or Error; Pending before the controller has seen it."""
    return str(workflow.get("status", {}).get("phase") or "Pending")


def workflow_message(workflow: Object) -> str:
    """What Argo says of the whole."""
    return _line(workflow.get("status", {}))


def views(workflow: Object) -> list[NodeView]:
    """Every node that has begun or was decided upon, in the order of their starts.

    Raises:
        UserError: Argo keeps the nodes in a database, where only its own server finds them.
    """
    run, nodes, ended = workflow["metadata"]["name"], _nodes(workflow), phase_of(workflow) in ENDED
    if not ended:
        nodes = {name: _until_synced(node) for name, node in nodes.items()}
    attempts = {child for n in nodes.values() if n["type"] == "Retry" for child in n.get("children") or []}
    found = []
    for node in sorted(nodes.values(), key=lambda n: (n.get("startedAt") or "", n["name"])):
        name = _name(run, node["name"])
        if name and node["id"] not in attempts and node["type"] != "DAG":
            found.append(_view(run, name, node, nodes))
    return [_closed(view) for view in found] if ended else found


def _nodes(workflow: Object) -> Nodes:
    """Of status.nodes, which Argo compresses when they are many."""
    status = workflow.get("status", {})
    if packed := status.get("compressedNodes"):
        nodes: Nodes = json.loads(gzip.decompress(base64.b64decode(packed)))
        return nodes
    if status.get("offloadNodeStatusVersion") and not status.get("nodes"):
        raise UserError(
            f"run {workflow['metadata']['name']}: Argo keeps the states of its many steps in a database; "
            "set argo.server to the URL of an Argo server, which can read it"
        )
    return status.get("nodes") or {}


def _until_synced(node: Object) -> Object:
    """Between the end of a pod and the coming of its outputs Argo says Succeeded already; it still runs."""
    late = node.get("taskResultSynced") is False and _phase(node).ended
    return node | {"phase": "Running"} if late else node


def _name(run: str, path: str) -> str:
    """The local engine's name of a node; "" for the DAG itself."""
    if path == f"{run}.onExit" or path.startswith(f"{run}.onExit("):
        return EXIT_NODE
    found = _PATH.fullmatch(path.removeprefix(f"{run}.")) if path.startswith(f"{run}.") else None
    if not found:
        return ""
    return found["task"] + (f".{found['item']}" if found["item"] else "")


def _view(run: str, name: str, node: Object, nodes: Nodes) -> NodeView:
    pods = list(_pods(node, nodes))
    outputs = {p["name"]: p.get("value", "") for p in (node.get("outputs") or {}).get("parameters") or []}
    cache = outputs.pop(CACHE_FILE, "")
    group = node["type"] == "TaskGroup"
    children = (nodes[child]["name"] for child in node.get("children") or [] if child in nodes)
    return NodeView(
        name=name,
        phase=_phase(node),
        message=_line(node) or (_line(pods[-1]) if pods else ""),
        finished=seconds(node.get("finishedAt")) or None,
        outputs=outputs if _phase(node) == Phase.SUCCEEDED else {},
        cache="" if group else cache,
        attempts=tuple(_attempt(run, pod) for pod in pods),
        items=tuple(sorted((i for path in children if (i := _name(run, path)).startswith(f"{name}.")), key=_number))
        if group
        else None,
    )


def _number(item: str) -> int:
    return int(item.rpartition(".")[2])


def _pods(node: Object, nodes: Nodes) -> Iterator[Object]:
    """The attempts of a node, in order."""
    if node["type"] == "Pod":
        yield node
    if node["type"] == "Retry":
        children = [nodes[child] for child in node.get("children") or [] if child in nodes]
        numbered = {int(found[1]): c for c in children if c["type"] == "Pod" and (found := _ATTEMPT.search(c["name"]))}
        yield from (numbered[number] for number in sorted(numbered))


def _attempt(run: str, pod: Object) -> Attempt:
    code = (pod.get("outputs") or {}).get("exitCode")
    return Attempt(
        pod=f"{run}-{pod['templateName']}"[:_MAX_PREFIX_CHARS] + "-" + pod["id"].rpartition("-")[2],
        phase=_phase(pod),
        started=seconds(pod.get("startedAt")),
        finished=seconds(pod.get("finishedAt")) or None,
        exit_code=int(code) if code is not None else None,
        message=_line(pod),
    )


def _closed(view: NodeView) -> NodeView:
    """A node of a workflow that has ended: Argo leaves some as they were (Retry nodes of one that was terminated)."""
    if view.phase.ended:
        return view
    last = view.attempts[-1] if view.attempts else None
    phase = last.phase if last and last.phase.ended else Phase.FAILED
    return replace(view, phase=phase, finished=view.finished or (last.finished if last else None))


def _phase(node: Object) -> Phase:
    return Phase(node.get("phase") or "Pending")


def _line(said: Mapping[str, Any]) -> str:
    return " ".join((said.get("message") or "").split())
