"""Follow a Workflow on a cluster: what happens to it becomes the events that the local engine has."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.engine.argo.failures import explain
from pipelines.engine.argo.logs import PodLog
from pipelines.engine.argo.results import group_result, node_result, outcome_of
from pipelines.engine.argo.status import ENDED, Attempt, NodeView, phase_of, views, workflow_message
from pipelines.engine.argo.workflows import Workflows
from pipelines.engine.events import (
    EXIT_NODE,
    Event,
    Listener,
    NodeFinished,
    NodeReady,
    NodeResult,
    NodeRetried,
    NodeStarted,
    NodeWaits,
    Outcome,
    Phase,
    RunStopping,
)
from pipelines.engine.said import Said
from pipelines.engine.templates import Template
from pipelines.engine.workflow import Workflow
from pipelines.run_state import NodeState, RunState
from steps.lib.errors import UserError
from steps.lib.kube import Object, seconds
from steps.lib.kube.waits import USUAL

LOOK_EVERY_S = 1.0
_PATIENCE_S = 10.0
"""How long a pod, or the workflow, may wait before somebody is asked why; and how often."""


class GoneError(UserError):
    """The workflow is not there any more."""


@dataclass
class _Told:
    """How much of a node was told."""

    started: int = 0
    """Attempts."""
    retried: int = 0
    waits: str = ""
    """Why it waits."""
    asked: float = 0.0
    """When the cluster was last asked why (monotonic)."""


class Follower:
    """Tells what happens to one workflow until it has ended.

    Args:
        state: what was told of this workflow before; it is not told again.
        scratch: a folder that gets a log file for each attempt.
        listeners: told of every event, from several threads.
        live: read the logs of running pods as they come; False: what is there (`take`).
        leave: set by another thread, it ends `run`.
    """

    def __init__(
        self,
        workflows: Workflows,
        workflow: Workflow,
        state: RunState,
        *,
        scratch: Path,
        listeners: Sequence[Listener] = (),
        live: bool = True,
        leave: threading.Event | None = None,
    ):
        self._live = live
        self._workflows, self._workflow = workflows, workflow
        self._scratch, self._listeners = scratch, listeners
        self._templates = {task.name: task.template for task in workflow.tasks}
        self._told: dict[str, _Told] = {}
        self._ended: dict[str, NodeResult] = {}
        self._ended_at: dict[str, float] = {}
        self._logs: dict[tuple[str, int], PodLog] = {}
        self._said: dict[tuple[str, int], Said] = {}
        self.ended_at = 0.0
        """When the workflow ended, seconds since the epoch."""
        self._unseen = ""
        """Why nothing has begun, as last told."""
        self._emit_lock = threading.Lock()
        self._listener_failed: Exception | None = None
        self._leave = leave or threading.Event()
        self._stopping = bool(state.stopping)
        for node in state.nodes.values():
            self._recall(node)

    def run(self) -> Outcome | None:
        """Follow to the end, or until `leave` is set: then there is no outcome.

        Raises:
            GoneError: the workflow is gone.
            TemporaryError: the server stayed away.
            KeyboardInterrupt: Ctrl-C; the workflow goes on.
        """
        try:
            while not (outcome := self.look()):
                if self._leave.wait(LOOK_EVERY_S):
                    return None
            return outcome
        finally:
            for log in self._logs.values():
                log.drop()

    def look(self) -> Outcome | None:
        """Look once, and tell what is new. Returns how it ended, once it has."""
        if self._listener_failed:
            raise self._listener_failed
        name = self._workflow.name
        workflow = self._workflows.get(name)
        if workflow is None:
            raise GoneError(
                f"run {name}: its workflow is gone from {self._workflows.place}; "
                f"`python -m pipelines.runs resume {name}` submits it again"
            )
        if workflow["spec"].get("shutdown") and not self._stopping:
            self._stopping = True
            self._emit(RunStopping(node="", time=time.time(), reason="cancelled", grace_s=0))
        news = [view for view in views(workflow) if view.name not in self._ended]
        for view in news:
            self._tell(view)
        for view in sorted((view for view in news if view.phase.ended), key=_end):
            self._finish(view)
        if phase_of(workflow) in ENDED:
            self.ended_at = seconds(workflow["status"].get("finishedAt")) or time.time()
            return outcome_of(workflow, list(self._templates), self._ended, self._ended_at)
        if not self._told and not self._ended:
            self._tell_unseen(workflow)
        return None

    def take(self) -> Outcome | None:
        """Look once, with all that pods have written until now. Returns how it ended, once it has."""
        outcome = self.look()
        for log in self._logs.values():
            log.end()
        return outcome

    # ---- one node ----------------------------------------------------------------------------

    def _recall(self, node: NodeState) -> None:
        """Take up a node where an earlier follower has left it; an attempt that ran is told again, for its log."""
        if node.phase.ended:
            self._ended_at[node.name] = node.finished or 0.0
            self._ended[node.name] = NodeResult(
                phase=node.phase,
                exit_code=node.exit_code,
                message=node.message,
                outputs=node.outputs,
                attempts=node.attempt + 1,
                wall_s=(node.finished or 0.0) - (node.started or node.finished or 0.0),
            )
        elif node.attempt >= 0:
            done = node.attempt + (node.retry_at is not None)
            self._told[node.name] = _Told(started=done, retried=done)

    def _tell(self, view: NodeView) -> None:
        if view.name not in self._told:
            self._told[view.name] = _Told()
            self._emit(NodeReady(node=view.name, time=time.time()))
        told = self._told[view.name]
        for number, attempt in enumerate(view.attempts):
            if attempt.phase == Phase.PENDING:
                self._wait(view.name, told, attempt)
            elif number >= told.started:
                self._start(view.name, number, attempt)
            if number + 1 < len(view.attempts) and number >= told.retried:
                self._retry(view.name, number, attempt)

    def _start(self, name: str, number: int, attempt: Attempt) -> None:
        path = self._scratch / name / str(number) / "log"
        self._told[name].started, self._told[name].waits = number + 1, ""
        self._emit(NodeStarted(node=name, time=attempt.started or time.time(), attempt=number, log=path))

        said = self._said[name, number] = Said(name, number)

        def line(text: str, steps: bool) -> None:
            try:
                for event in said.take(text, steps=steps):
                    self._emit(event)
            except Exception as e:  # noqa: BLE001  # raised by the thread that looks
                self._listener_failed = e

        self._logs[name, number] = PodLog(
            self._workflows, self._workflow.name, attempt.pod, path, line, live=self._live
        )

    def _wait(self, name: str, told: _Told, attempt: Attempt) -> None:
        """A pod that fits nowhere, or whose image or Secret is not there, says so instead of waiting silently."""
        why, now = attempt.message, time.monotonic()
        if why in USUAL:
            if time.time() - attempt.started < _PATIENCE_S or now - told.asked < _PATIENCE_S:
                return
            told.asked = now
            why = self._workflows.why_it_waits(attempt.pod)
        if why and told.waits != why:
            told.waits = why
            self._emit(NodeWaits(node=name, time=time.time(), reason=why))

    def _tell_unseen(self, workflow: Object) -> None:
        """Nothing has begun: the first tasks say why, when it takes long."""
        created = seconds(workflow["metadata"]["creationTimestamp"]) or time.time()
        why = workflow_message(workflow)
        if not why and phase_of(workflow) == "Pending" and time.time() - created > _PATIENCE_S:
            why = f"no Argo controller has taken the workflow up; does one run that looks at {self._workflows.place}?"
        if why and why != self._unseen:
            self._unseen = why
            for task in self._workflow.tasks:
                if not task.depends:
                    self._emit(NodeWaits(node=task.name, time=time.time(), reason=why))

    def _retry(self, name: str, number: int, attempt: Attempt) -> None:
        self._end_log(name, number)
        self._told[name].retried = number + 1
        code, message = self._explain(name, number, attempt)
        self._emit(
            NodeRetried(
                node=name,
                time=attempt.finished or time.time(),
                attempt=number,
                exit_code=code or 0,
                message=message,
                wait_s=0,
            )
        )

    def _finish(self, view: NodeView) -> None:
        last = len(view.attempts) - 1
        self._end_log(view.name, last)
        result = self._result(view)
        now = view.finished or time.time()
        self._ended[view.name], self._ended_at[view.name] = result, now
        self._emit(
            NodeFinished(
                node=view.name,
                time=now,
                phase=view.phase,
                attempt=last,
                exit_code=result.exit_code,
                message=result.message,
                outputs=result.outputs,
                cache=view.cache,
            )
        )

    def _result(self, view: NodeView) -> NodeResult:
        if view.items is not None:
            items = [self._ended[name] for name in view.items if name in self._ended]
            return group_result(view, items, self._template(view.name))
        explained = self._explain(view.name, len(view.attempts) - 1, view.attempts[-1]) if view.attempts else None
        return node_result(view, explained)

    def _end_log(self, name: str, number: int) -> None:
        if log := self._logs.pop((name, number), None):
            log.end()

    def _explain(self, name: str, number: int, attempt: Attempt) -> tuple[int | None, str]:
        said = self._said.get((name, number))
        why = said.why if said else ""
        return explain(attempt, workflow=self._workflow, template=self._template(name), said=why)

    def _template(self, name: str) -> Template | None:
        return self._workflow.on_exit if name == EXIT_NODE else self._templates.get(name.partition(".")[0])

    def _emit(self, event: Event) -> None:
        with self._emit_lock:
            for listener in self._listeners:
                listener(event)


def _end(view: NodeView) -> tuple[float, bool]:
    """Nodes by the time of their ends, a task that fans out after its items."""
    return view.finished or 0.0, view.items is not None
