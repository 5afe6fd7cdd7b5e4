"""The tasks of a DAG while they run: their states, and what one task takes from another.

A task that fans out is a group: one node an item, and a node of the task's own name that ends when
all of them have. Everything here follows Argo 4.0: what a skipped task gives (its defaults), how the
outputs of a group are collected (a JSON list), how an item becomes text.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.engine.dag import Task, When
from pipelines.engine.events import NodeResult, Phase
from pipelines.engine.references import Ref, Text
from pipelines.engine.templates import Template

NOT_HELD = "its condition does not hold"
NO_ITEM = "there is no item"
NOT_REACHED = "something that it depends on did not succeed"


class TaskError(Exception):
    """A task cannot be run as it stands; becomes the state Error."""


@dataclass(eq=False)
class Node:
    """One thing to run."""

    name: str
    template: Template
    arguments: dict[str, str]
    """Values of the template's input parameters."""
    result: NodeResult = field(default_factory=lambda: NodeResult(phase=Phase.PENDING))
    cache: str = ""


@dataclass(eq=False)
class TaskState:
    """A task and the nodes that it has become."""

    task: Task
    nodes: list[Node] = field(default_factory=list)
    """One, or one an item; none until its dependencies have ended."""
    result: NodeResult = field(default_factory=lambda: NodeResult(phase=Phase.PENDING))
    """Of the whole task."""

    def settle(self) -> bool:
        """Take the task's own result from its nodes. Returns whether it has just ended."""
        if self.result.phase.ended or not self.nodes or not all(n.result.phase.ended for n in self.nodes):
            return False
        if not self.task.fans_out:
            self.result = self.nodes[0].result
            return True
        bad = [node.result for node in self.nodes if node.result.phase.bad]
        self.result = NodeResult(
            phase=bad[-1].phase if bad else Phase.SUCCEEDED,
            exit_code=bad[0].exit_code if bad else 0,
            message=bad[0].message if bad else "",
            outputs={output.name: self._collected(output.name) for output in self.task.template.outputs},
            attempts=sum(node.result.attempts for node in self.nodes),
            wall_s=sum(node.result.wall_s for node in self.nodes),
        )
        return True

    def output(self, name: str) -> str | None:
        """Value of an output parameter; None when the task was skipped and there is no default."""
        if self.result.phase == Phase.SUCCEEDED:
            return self.result.outputs[name]
        return next(output.default for output in self.task.template.outputs if output.name == name)

    def _collected(self, name: str) -> str:
        return collect([n.result.outputs[name] for n in self.nodes if n.result.phase == Phase.SUCCEEDED])


class Scope:
    """Values of the references that stand in a task of the DAG."""

    def __init__(self, workflow_name: str, parameters: Mapping[str, str], states: Mapping[str, TaskState]):
        self._fixed = {"workflow.name": workflow_name}
        self._fixed |= {f"workflow.parameters.{name}": value for name, value in parameters.items()}
        self._states = states

    def skips(self, task: Task) -> bool:
        """Whether the whole task is skipped: its condition names no item and does not hold."""
        per_item = task.when is not None and any(ref.kind == "item" for ref in task.when.refs)
        return not per_item and not self._holds(task.when, None)

    def expand(self, task: Task) -> list[Node]:
        """The nodes of a task whose dependencies have ended well; none for an empty list.

        Raises:
            TaskError: a value is missing, or is not a list where one is needed.
        """
        if not task.fans_out:
            return [self._node(task, task.name, None)]
        items = task.items if task.items is not None else self._listed(task)
        return [self._node(task, f"{task.name}.{index}", item_text(item)) for index, item in enumerate(items)]

    def fill(self, text: Text, item: str | None = None) -> str:
        """The text with the values of its references. Raises TaskError when one has none."""
        return text.fill(lambda ref: self._present(ref, item))

    def workflow_value(self, ref: Ref) -> str:
        """Value of a reference of kind workflow.name or workflow.parameters."""
        return self._fixed[ref.name]

    def _node(self, task: Task, name: str, item: str | None) -> Node:
        node = Node(name=name, template=task.template, arguments={})
        if not self._holds(task.when, item):
            node.result = NodeResult(phase=Phase.SKIPPED, message=NOT_HELD)
            return node
        for parameter, default in task.template.inputs.items():
            text = task.arguments.get(parameter)
            absent = text is None or (text.only_ref and self._value(text.only_ref, item) is None)
            if not absent and text is not None:
                node.arguments[parameter] = self.fill(text, item)
            elif default is not None:
                node.arguments[parameter] = default
            elif text is not None and text.only_ref:
                raise _skipped(text.only_ref)
        return node

    def _holds(self, when: When | None, item: str | None) -> bool:
        return when is None or (self.fill(when.left, item) == self.fill(when.right, item)) == when.equal

    def _listed(self, task: Task) -> list[Any]:
        assert task.items_from
        text = self.fill(task.items_from)
        items = _parse_json(text)
        if items is None and text.strip() == "null":
            return []
        if not isinstance(items, list):
            raise TaskError(f"withParam takes a JSON list, got {text[:80]!r}")
        return items

    def _present(self, ref: Ref, item: str | None) -> str:
        value = self._value(ref, item)
        if value is None:
            raise _skipped(ref)
        if "{{" in value and ref.kind in ("item", "tasks"):
            raise TaskError(
                f"{{{{{ref.name}}}}}: its value {value[:80]!r} holds '{{{{', which Argo would take for a reference; "
                "put it into the store and pass its key"
            )
        return value

    def _value(self, ref: Ref, item: str | None) -> str | None:
        if ref.kind == "item":
            return item
        return self._states[ref.task].output(ref.parameter) if ref.kind == "tasks" else self._fixed[ref.name]


def collect(values: list[str]) -> str:
    """The output of a task that fans out: a JSON list of the outputs of all items that succeeded, in their order.

    Lists and mappings are put in as such when all values are, else each value is a string.
    """
    parsed = [_parse_json(value) for value in values]
    return go_json(parsed if all(isinstance(value, dict | list) for value in parsed) else values)


def item_text(item: Any) -> str:
    """What {{item}} stands for: strings as they are, everything else as JSON."""
    return item if isinstance(item, str) else go_json(item)


def go_json(value: Any) -> str:
    """JSON as Go writes it: sorted keys, no spaces, `<`, `>` and `&` escaped."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _skipped(ref: Ref) -> TaskError:
    return TaskError(
        f"{{{{{ref.name}}}}}: task {ref.task!r} was skipped and its output has no default; "
        "give the output or the input one"
    )


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
