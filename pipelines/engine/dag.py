"""The DAG of a Workflow: its tasks, their order, and what each takes from others."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.engine.document import Place, by_name
from pipelines.engine.events import EXIT_NODE
from pipelines.engine.references import Ref, Text, literal, parse_text
from pipelines.engine.templates import TEMPLATE_IGNORED, Template, check_parameters
from steps.lib.errors import UserError

MAX_ITEMS = 10_000
"""Nodes that one fan-out may have."""
_KINDS = ("workflow.name", "workflow.parameters", "tasks")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_WHEN = re.compile(r"\s*'([^']*)'\s*(==|!=)\s*'([^']*)'\s*")


@dataclass(frozen=True, kw_only=True)
class When:
    """A condition: two texts, compared once their references are filled in."""

    left: Text
    equal: bool
    """== rather than !=."""
    right: Text

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The references on both sides."""
        return self.left.refs + self.right.refs


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task of the DAG."""

    name: str
    template: Template
    depends: tuple[str, ...]
    arguments: dict[str, Text]
    when: When | None
    items: tuple[Any, ...] | None
    """withItems: one call for each."""
    items_from: Text | None
    """withParam: text that holds a JSON list once filled in."""

    @property
    def fans_out(self) -> bool:
        """Whether the task is one call for each item of a list."""
        return self.items is not None or self.items_from is not None


def parse_tasks(dag: Place, templates: dict[str, Template], parameters: dict[str, str]) -> tuple[Task, ...]:
    """The tasks of the template `dag`, each after those that it depends on.

    Raises:
        UserError: a field, a type, a dependency or a reference is wrong.
    """
    dag.only(("dag", "name"), TEMPLATE_IGNORED)
    places = by_name(dag.at("dag").only(("tasks",)).items("tasks"))
    if not places:
        raise UserError(f"workflow {dag.path}.dag.tasks: got none, allowed is at least one task")
    if EXIT_NODE in places:
        raise places[EXIT_NODE].at("name").wrong("any other name: that one is the exit handler's")
    tasks = {name: _task(place, templates, places) for name, place in places.items()}
    order = _in_order(tasks, places)
    before: dict[str, set[str]] = {}
    for name in order:
        task = tasks[name]
        before[name] = set(task.depends).union(*(before[other] for other in task.depends))
        _check_task_refs(task, places[name], before[name], tasks, parameters)
    return tuple(tasks[name] for name in order)


def _task(place: Place, templates: dict[str, Template], names: Iterable[str]) -> Task:
    place.only(("arguments", "depends", "name", "template", "when", "withItems", "withParam"))
    template = place.at("template")
    if template.text() not in templates:
        raise template.wrong(f"one of the container templates {', '.join(templates)}")
    if place.has("withItems") and place.has("withParam"):
        raise UserError(f"workflow {place.path}: withItems and withParam are both given, allowed is one")
    kinds = (*_KINDS, "item") if place.has("withItems") or place.has("withParam") else _KINDS
    given = place.at("arguments").only(("parameters",)).items("parameters") if place.has("arguments") else ()
    arguments = {name: entry.only(("name", "value")).at("value") for name, entry in by_name(given).items()}
    task = Task(
        name=place.at("name").text(),
        template=templates[template.text()],
        depends=_depends(place.at("depends"), names) if place.has("depends") else (),
        arguments={name: parse_text(value.text(), value.path, kinds) for name, value in arguments.items()},
        when=_when(place.at("when"), kinds) if place.has("when") else None,
        items=_items(place.at("withItems")) if place.has("withItems") else None,
        items_from=parse_text(place.at("withParam").text(), f"{place.path}.withParam", _KINDS)
        if place.has("withParam")
        else None,
    )
    _check_arguments(task, place)
    return task


def _depends(place: Place, names: Iterable[str]) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in place.text().split("&&"))
    known = list(names)
    for part in parts:
        if not _NAME.fullmatch(part):
            raise place.wrong("names of tasks joined by &&")
        if part not in known:
            raise place.wrong(f"names of the tasks {', '.join(known)} joined by &&")
    return tuple(dict.fromkeys(parts))


def _when(place: Place, kinds: Sequence[str]) -> When:
    match = _WHEN.fullmatch(place.text())
    if not match:
        raise place.wrong("'a' == 'b' or 'a' != 'b', both in single quotes")
    left, right = (parse_text(match[side], place.path, kinds) for side in (1, 3))
    return When(left=left, equal=match[2] == "==", right=right)


def _items(place: Place) -> tuple[Any, ...]:
    items = place.list()
    if not items or len(items) > MAX_ITEMS:
        raise UserError(f"workflow {place.path}: got {len(items)} items, allowed are 1 to {MAX_ITEMS}")
    for index, item in enumerate(items):
        entry = Place(f"{place.path}[{index}]", item)
        if not isinstance(item, dict | list):
            literal(entry)
        elif "{{" in str(item):
            raise entry.wrong("plain values, no references")
    return tuple(items)


def _check_arguments(task: Task, place: Place) -> None:
    inputs = task.template.inputs
    if unknown := task.arguments.keys() - inputs.keys():
        raise UserError(
            f"workflow {place.path}.arguments: template {task.template.name!r} has no input {min(unknown)!r}, "
            f"it has {', '.join(inputs) or 'none'}"
        )
    missing = [name for name, default in inputs.items() if default is None and name not in task.arguments]
    if missing:
        raise UserError(
            f"workflow {place.path}.arguments: input {missing[0]!r} of template {task.template.name!r} is missing"
        )


def _check_task_refs(
    task: Task, place: Place, before: set[str], tasks: dict[str, Task], parameters: dict[str, str]
) -> None:
    texts = [*task.arguments.values(), *([task.items_from] if task.items_from else [])]
    refs = [ref for text in texts for ref in text.refs] + list(task.when.refs if task.when else ())
    for ref in refs:
        if ref.kind == "tasks" and ref.task not in before:
            raise UserError(
                f"workflow {place.path}: {{{{{ref.name}}}}} names a task that this one does not depend on; "
                f"it depends on {', '.join(sorted(before)) or 'none'}"
            )
        if ref.kind == "tasks":
            outputs = [output.name for output in tasks[ref.task].template.outputs]
            check_parameters([ref], place, {"tasks": outputs})
    check_parameters(refs, place, {"workflow.parameters": parameters})


def _in_order(tasks: dict[str, Task], places: dict[str, Place]) -> list[str]:
    """Names of the tasks, each after those that it depends on, else as written."""
    done: dict[str, None] = {}
    while len(done) < len(tasks):
        ready = [name for name, task in tasks.items() if name not in done and all(d in done for d in task.depends)]
        if not ready:
            stuck = [name for name in tasks if name not in done]
            raise UserError(
                f"workflow {places[stuck[0]].path}.depends: a circle of dependencies among {', '.join(stuck)}"
            )
        done |= dict.fromkeys(ready)
    return list(done)
