"""The state of a run: what events add up to, what the store keeps, what the views show.

Written to `runs/<id>/status.json` while the run goes on, read back by `runs status`.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipelines.engine.events import (
    EXIT_NODE,
    Event,
    NodeFinished,
    NodeRetried,
    NodeStarted,
    NodeWaits,
    Outcome,
    Phase,
    Progress,
    RunStopping,
)
from pipelines.engine.workflow import Workflow


class NodeState(BaseModel):
    """One node: a task, one item of a task that fans out, or the exit handler."""

    model_config = ConfigDict(extra="forbid")

    name: str
    parent: str = ""
    """The task that fans out, for one of its items."""
    phase: Phase = Phase.PENDING
    waits_for: tuple[str, ...] = ()
    """Tasks that it depends on."""
    attempt: int = -1
    """The last one, from 0; -1 when none has started."""
    started: float | None = None
    """Of the first attempt, seconds since the epoch."""
    finished: float | None = None
    waiting: str = ""
    """Why it cannot start although its turn has come."""
    exit_code: int | None = None
    message: str = ""
    outputs: dict[str, str] = {}
    cache: str = ""
    """`hit: why` or `miss: why`; "" when the step did not tell."""
    progress: dict[str, str] = {}
    """The last `progress` line."""
    retry_at: float | None = None
    """When the next attempt starts, while it waits for that."""


class RunState(BaseModel):
    """A whole run."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    phase: Literal["Running", "Succeeded", "Failed", "Error", "Lost"] = "Running"
    """Lost: it was running, and nothing runs it any more. Seen by readers only, never written."""
    started: float
    finished: float | None = None
    exit_code: int | None = None
    message: str = ""
    stopping: str = ""
    """Why it is being stopped, and what a person can do about it."""
    earlier: dict[str, int] = {}
    """Node -> its attempts before the run was resumed; their logs are kept under the first numbers."""
    shared_logs: bool = False
    """Whether its logs are shared ones: pods write them, and whoever follows the run copies them."""
    nodes: dict[str, NodeState]

    def apply(self, event: Event) -> None:
        """Take in one event of the engine."""
        if isinstance(event, RunStopping):
            hint = "; steps get time to end, a second Ctrl-C kills them" if event.grace_s else ""
            self.stopping = event.reason + hint
            return
        node = self._node(event.node)
        if isinstance(event, NodeStarted):
            node.phase, node.attempt, node.retry_at = Phase.RUNNING, event.attempt, None
            node.waiting = ""
            node.started = node.started or event.time
            node.progress = {}
            self._parent_runs(node, event.time)
        elif isinstance(event, NodeWaits):
            node.waiting = event.reason
        elif isinstance(event, Progress):
            node.progress = event.values
        elif isinstance(event, NodeRetried):
            node.phase, node.retry_at = Phase.PENDING, event.time + event.wait_s
            node.exit_code, node.message = event.exit_code, event.message
        elif isinstance(event, NodeFinished):
            node.phase, node.finished, node.retry_at, node.waiting = event.phase, event.time, None, ""
            node.exit_code, node.message = event.exit_code, event.message
            node.outputs, node.cache = event.outputs, event.cache

    def end(self, outcome: Outcome, time: float) -> None:
        """Take in how the run ended."""
        self.phase = outcome.phase.value  # type: ignore[assignment]  # an Outcome's phase is a final one
        self.exit_code, self.message, self.finished = outcome.exit_code, outcome.message, time

    def lose(self, why: str, seen: float = 0.0) -> None:
        """Nothing runs it any more, and it has not ended: for who looks at it, it ended when it was last seen.

        Args:
            seen: seconds since the epoch; 0: at the last event.
        """
        times = [time for node in self.nodes.values() for time in (node.started, node.finished) if time]
        self.phase, self.message, self.finished = "Lost", why, seen or max(times, default=self.started)
        for node in self.nodes.values():
            if node.phase == Phase.RUNNING:
                node.phase, node.message, node.finished = Phase.ERROR, "interrupted", self.finished

    def items_of(self, task: str) -> list[NodeState]:
        """The nodes of a task that fans out."""
        return [node for node in self.nodes.values() if node.parent == task]

    def shown(self) -> list[NodeState]:
        """The tasks, and below one that fans out those of its items that fail or have failed before."""
        shown = []
        for node in self.nodes.values():
            if not node.parent:
                items = self.items_of(node.name)
                shown += [node, *(item for item in items if item.phase.bad or item.retry_at is not None)]
        return shown

    def log_numbers(self, node: NodeState) -> range:
        """Numbers of the logs of a node's attempts, those before the run was resumed first."""
        return range(self.earlier.get(node.name, 0) + node.attempt + 1)

    def failed_node(self) -> NodeState | None:
        """The node that the run's exit code comes from."""
        bad = [n for n in self.nodes.values() if n.phase.bad and n.finished and not self.items_of(n.name)]
        return min(bad, key=lambda n: n.finished or 0, default=None)

    def _node(self, name: str) -> NodeState:
        if name not in self.nodes:
            task, _, _ = name.partition(".")
            self.nodes[name] = NodeState(name=name, parent=task if task != name else "")
        return self.nodes[name]

    def _parent_runs(self, node: NodeState, time: float) -> None:
        if node.parent:
            parent = self.nodes[node.parent]
            parent.phase, parent.started = Phase.RUNNING, parent.started or time


def new_state(
    workflow: Workflow, started: float, before: RunState | None = None, *, shared_logs: bool = False
) -> RunState:
    """The state of a run that has not begun: every task waits.

    Args:
        before: how far it came before it was resumed.
    """
    nodes = [NodeState(name=task.name, waits_for=task.depends) for task in workflow.tasks]
    if workflow.on_exit:
        nodes.append(NodeState(name=EXIT_NODE))
    earlier = {name: len(before.log_numbers(node)) for name, node in before.nodes.items()} if before else {}
    return RunState(
        run_id=workflow.name,
        started=started,
        earlier=earlier,
        shared_logs=shared_logs,
        nodes={node.name: node for node in nodes},
    )
