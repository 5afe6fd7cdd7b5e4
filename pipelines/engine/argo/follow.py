"""Follow a Workflow on a cluster: what happens to it becomes the events that the local engine has."""

import time
from collections.abc import Sequence
from pathlib import Path

from pipelines.engine.argo.logs import PodLog
from pipelines.engine.argo.status import Attempt, NodeView, views, workflow_message
from pipelines.engine.argo.submit import ENDED, phase_of
from pipelines.engine.events import (
    Event,
    Listener,
    LogLine,
    NodeFinished,
    NodeReady,
    NodeResult,
    NodeRetried,
    NodeStarted,
    Outcome,
    Phase,
    Progress,
    RunStopping,
)
from steps.lib.errors import Exit, UserError
from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import WORKFLOW

LOOK_EVERY_S = 1.0


class Follower:
    """Tells what happens to one workflow until it has ended.

    Args:
        scratch: a folder that gets a log file for each attempt.
        listeners: told of every event, from several threads.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, run: str, *, scratch: Path, listeners: Sequence[Listener] = ()
    ):
        self._cluster, self._namespace, self._run = cluster, namespace, run
        self._scratch, self._listeners = scratch, listeners
        self._told: dict[str, int] = {}
        """Node -> attempts that were told to have started."""
        self._retried: dict[str, int] = {}
        self._ended: dict[str, NodeResult] = {}
        self._waits: dict[str, str] = {}
        """Node -> why its pod does not run, as last told."""
        self._logs: dict[tuple[str, int], PodLog] = {}
        self._errors: dict[tuple[str, int], str] = {}
        """The last line `error: ...` of each attempt."""
        self._stopping = False

    def run(self) -> Outcome:
        """Follow to the end.

        Raises:
            UserError: the workflow is gone.
            TemporaryError: the cluster stayed away.
            KeyboardInterrupt: Ctrl-C; the workflow goes on.
        """
        try:
            while True:
                workflow = self.look()
                if phase_of(workflow) in ENDED:
                    return self.outcome(workflow)
                time.sleep(LOOK_EVERY_S)
        finally:
            self.close()

    def close(self) -> None:
        """Follow no more logs."""
        for log in self._logs.values():
            log.end(0)

    def look(self) -> Object:
        """Look once, and tell what is new. Returns the Workflow."""
        workflow = self._cluster.get(WORKFLOW, self._namespace, self._run)
        if workflow is None:
            raise UserError(
                f"run {self._run}: no such workflow in {self._namespace} of the {self._cluster.name} cluster any more; "
                f"`python -m pipelines.runs resume {self._run}` submits it again"
            )
        if workflow["spec"].get("shutdown") and not self._stopping:
            self._stopping = True
            self._emit(RunStopping(node="", time=time.time(), reason="cancelled", grace_s=0))
        for view in views(workflow):
            if view.name not in self._ended:
                self._tell(view)
        return workflow

    def _tell(self, view: NodeView) -> None:
        if view.name not in self._told:
            self._told[view.name] = 0
            self._emit(NodeReady(node=view.name, time=time.time()))
        for number, attempt in enumerate(view.attempts):
            if number >= self._told[view.name]:
                self._start(view.name, number, attempt)
            if number + 1 < len(view.attempts) and number >= self._retried.get(view.name, 0):
                self._retry(view.name, number, attempt)
        if view.phase.ended:
            self._finish(view)
        elif view.attempts and view.attempts[-1].phase == Phase.PENDING:
            self._wait(view.name, view.attempts[-1].message)

    def _start(self, name: str, number: int, attempt: Attempt) -> None:
        path = self._scratch / name / str(number) / "log"
        self._emit(NodeStarted(node=name, time=attempt.started or time.time(), attempt=number, log=path))
        self._told[name] = number + 1

        def line(text: str) -> None:
            self._line(name, number, text)

        self._logs[name, number] = PodLog(self._cluster, self._namespace, self._run, attempt.node_id, path, line)

    def _line(self, name: str, number: int, text: str) -> None:
        now = time.time()
        if text.startswith("error: "):
            self._errors[name, number] = text.removeprefix("error: ")
        if text.startswith("progress "):
            values = dict(pair.split("=", 1) for pair in text.split()[1:] if "=" in pair)
            self._emit(Progress(node=name, time=now, values=values))
        self._emit(LogLine(node=name, time=now, attempt=number, line=text))

    def _wait(self, name: str, why: str) -> None:
        """A pod that cannot be scheduled, or whose image is not there, says so instead of waiting silently."""
        if why and self._waits.get(name) != why:
            self._waits[name] = why
            self._emit(Progress(node=name, time=time.time(), values={"phase": f"pod waits: {why}"}))

    def _retry(self, name: str, number: int, attempt: Attempt) -> None:
        self._end_log(name, number)
        self._retried[name] = number + 1
        self._emit(
            NodeRetried(
                node=name,
                time=attempt.finished or time.time(),
                attempt=number,
                exit_code=attempt.exit_code or 0,
                message=self._said(name, number, attempt.message),
                wait_s=0,
            )
        )

    def _finish(self, view: NodeView) -> None:
        last = len(view.attempts) - 1
        self._end_log(view.name, last)
        attempt = view.attempts[-1] if view.attempts else None
        message = (
            self._said(view.name, last, (attempt and attempt.message) or view.message)
            if view.phase.bad
            else view.message
        )
        if view.phase == Phase.SUCCEEDED:
            message = ""
        code = attempt.exit_code if attempt else None
        if attempt and code is None:
            code = Exit.DONE if view.phase == Phase.SUCCEEDED else None
        self._ended[view.name] = NodeResult(
            phase=view.phase,
            exit_code=code,
            message=message,
            outputs=view.outputs,
            attempts=last + 1,
            wall_s=sum((a.finished or a.started) - a.started for a in view.attempts),
        )
        self._emit(
            NodeFinished(
                node=view.name,
                time=view.finished or time.time(),
                phase=view.phase,
                attempt=last,
                exit_code=code,
                message=message,
                outputs=view.outputs,
                cache=view.cache,
            )
        )

    def _end_log(self, name: str, number: int) -> None:
        if log := self._logs.pop((name, number), None):
            log.end()

    def _said(self, name: str, number: int, argos: str) -> str:
        """The step's own words, else Argo's."""
        return self._errors.get((name, number)) or argos

    def outcome(self, workflow: Object) -> Outcome:
        """How a workflow that has ended did."""
        phase, message = Phase(phase_of(workflow)), workflow_message(workflow)
        if phase == Phase.SUCCEEDED:
            return Outcome(phase=phase, exit_code=Exit.DONE, message="", nodes=self._ended)
        if workflow["spec"].get("shutdown"):
            return Outcome(phase=Phase.FAILED, exit_code=Exit.CANCELLED, message="cancelled", nodes=self._ended)
        bad = [(name, node) for name, node in self._ended.items() if node.phase.bad]
        if not bad:  # Argo refused it, or timed it out, before any step failed
            return Outcome(phase=phase, exit_code=Exit.USER, message=message, nodes=self._ended)
        name, first = next(((n, r) for n, r in bad if r.exit_code), bad[0])
        return Outcome(
            phase=phase, exit_code=first.exit_code or Exit.BUG, message=f"{name}: {first.message}", nodes=self._ended
        )

    def _emit(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)
