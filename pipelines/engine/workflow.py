"""A parsed Argo Workflow document -> Workflow, the part of Argo that both engines run.

honoured   entrypoint (a DAG), templates, arguments, onExit, parallelism, activeDeadlineSeconds
           task: template, depends (names joined by &&), arguments, when ('a' == 'b', !=), withItems, withParam
           template: container command, args, env; inputs, outputs with defaults; retryStrategy (retry.py)
ignored    image, resources, scheduling, security, volumes, TTL, labels
refused    everything else, by name, before anything runs
"""

from dataclasses import dataclass, field
from typing import Any

from pipelines.engine.dag import Task, parse_tasks
from pipelines.engine.document import Place, by_name, name_at
from pipelines.engine.retry import RETRY_EXPRESSION, retry_strategy
from pipelines.engine.templates import OUTPUTS_FOLDER, SCHEDULING, Template, parse_template
from steps.lib.errors import UserError

__all__ = [
    "OUTPUTS_FOLDER",
    "RETRY_EXPRESSION",
    "Task",
    "Template",
    "Workflow",
    "parse_workflow",
    "retry_strategy",
]

_IGNORED = (*SCHEDULING, "podGC", "podMetadata", "podPriorityClassName", "priority", "ttlStrategy")


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """All that the local engine needs to know."""

    name: str
    """metadata.name, the run id."""
    parameters: dict[str, str]
    tasks: tuple[Task, ...]
    """In an order in which each comes after those that it depends on."""
    on_exit: Template | None
    parallelism: int | None
    """Attempts that may run at a time."""
    deadline_s: int | None
    """Longest time of the whole run, exit handler not counted."""
    document: dict[str, Any] = field(repr=False)
    """What it was parsed from."""


def parse_workflow(document: dict[str, Any]) -> Workflow:
    """Read a Workflow.

    Raises:
        UserError: a field outside the subset, a wrong type, an unknown or unreachable reference;
            names the place in the document and what is allowed.
    """
    root = Place("", document).only(("apiVersion", "kind", "metadata", "spec"))
    for key, expected in (("apiVersion", "argoproj.io/v1alpha1"), ("kind", "Workflow")):
        if (place := root.at(key)).value != expected:
            raise place.wrong(repr(expected))
    metadata = root.at("metadata").only(("name",), ("annotations", "labels", "namespace"))
    spec = root.at("spec").only(
        ("activeDeadlineSeconds", "arguments", "entrypoint", "onExit", "parallelism", "templates"), _IGNORED
    )
    parameters = _workflow_parameters(spec)
    places = by_name(spec.items("templates"))
    dag = _template_place(places, spec.at("entrypoint"), "dag")
    on_exit = _template_place(places, spec.at("onExit"), "container") if spec.has("onExit") else None
    templates = {
        name: parse_template(place, parameters, place is on_exit) for name, place in places.items() if place is not dag
    }
    return Workflow(
        name=name_at(metadata.at("name")),
        parameters=parameters,
        tasks=parse_tasks(dag, templates, parameters),
        on_exit=_exit_handler(on_exit, templates),
        parallelism=spec.at("parallelism").positive() if spec.has("parallelism") else None,
        deadline_s=spec.at("activeDeadlineSeconds").positive() if spec.has("activeDeadlineSeconds") else None,
        document=document,
    )


def _workflow_parameters(spec: Place) -> dict[str, str]:
    if not spec.has("arguments"):
        return {}
    places = by_name(spec.at("arguments").only(("parameters",)).items("parameters"))
    return {name: place.only(("name", "value")).at("value").text() for name, place in places.items()}


def _template_place(places: dict[str, Place], name: Place, kind: str) -> Place:
    if name.text() not in places:
        raise name.wrong(f"one of the templates {', '.join(places)}")
    place = places[name.text()]
    if kind not in place.value:
        raise name.wrong(f"a template with a {kind}")
    return place


def _exit_handler(place: Place | None, templates: dict[str, Template]) -> Template | None:
    if place is None:
        return None
    template = templates[place.at("name").text()]
    if missing := [name for name, default in template.inputs.items() if default is None]:
        raise UserError(
            f"workflow {place.path}.inputs: the exit handler gets no arguments, so {missing[0]!r} needs a default"
        )
    return template
