"""How a node, a task that fans out and the whole workflow ended, as the local engine gives it. Pure."""

from collections.abc import Mapping, Sequence

from pipelines.engine.argo.status import NodeView, phase_of, workflow_message
from pipelines.engine.events import NodeResult, Outcome, Phase
from pipelines.engine.nodes import NO_ITEM, NOT_HELD, NOT_REACHED, collect
from pipelines.engine.templates import Template
from steps.lib.errors import Exit
from steps.lib.kube import Object


def node_result(view: NodeView, explained: tuple[int | None, str] | None) -> NodeResult:
    """Of one node.

    Args:
        explained: exit code and message of its last attempt; None when none ran.
    """
    code, message = explained or (None, _why_it_did_not_run(view))
    return NodeResult(
        phase=view.phase,
        exit_code=code,
        message=message,
        outputs=view.outputs,
        attempts=len(view.attempts),
        wall_s=sum((a.finished or a.started) - a.started for a in view.attempts),
    )


def group_result(view: NodeView, items: Sequence[NodeResult], template: Template | None) -> NodeResult:
    """Of a task that fans out: what its items give. Argo keeps no outputs of it."""
    bad = [item for item in items if item.phase.bad]
    good = [item.outputs for item in items if item.phase == Phase.SUCCEEDED]
    names = [output.name for output in template.outputs] if template else []
    return NodeResult(
        phase=view.phase,
        exit_code=bad[0].exit_code if bad else Exit.DONE,
        message=bad[0].message if bad else view.message,
        outputs={name: collect([given.get(name, "") for given in good]) for name in names},
        attempts=sum(item.attempts for item in items),
        wall_s=sum(item.wall_s for item in items),
    )


def outcome_of(
    workflow: Object, tasks: Sequence[str], ended: Mapping[str, NodeResult], ended_at: Mapping[str, float]
) -> Outcome:
    """Of a workflow that has ended: its exit code is that of the first step that failed.

    Args:
        tasks: names of all tasks, those that never began too.
    """
    phase = Phase(phase_of(workflow))
    nodes = {name: NodeResult(phase=Phase.PENDING) for name in tasks} | dict(ended)
    if phase == Phase.SUCCEEDED:
        return Outcome(phase=phase, exit_code=Exit.DONE, message="", nodes=nodes)
    if workflow["spec"].get("shutdown"):
        return Outcome(phase=Phase.FAILED, exit_code=Exit.CANCELLED, message="cancelled", nodes=nodes)
    bad = [name for name, result in ended.items() if result.phase.bad]
    if not bad:  # Argo refused it, or ended it before any step began
        return Outcome(phase=phase, exit_code=Exit.USER, message=workflow_message(workflow), nodes=nodes)
    name = min(bad, key=lambda name: (ended_at[name], "." not in name))  # an item before the task that it fails
    first = ended[name]
    return Outcome(phase=phase, exit_code=first.exit_code or Exit.BUG, message=f"{name}: {first.message}", nodes=nodes)


def _why_it_did_not_run(view: NodeView) -> str:
    if view.phase == Phase.OMITTED:
        return NOT_REACHED
    if view.phase == Phase.SKIPPED:
        return NO_ITEM if view.message == "Skipped, empty params" else NOT_HELD
    return "" if view.phase == Phase.SUCCEEDED else view.message
