"""A template of a Workflow: what one kind of task runs, what goes in and what comes out."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from pipelines.engine.document import Place, by_name
from pipelines.engine.references import Ref, Text, literal, parse_text
from pipelines.engine.retry import Retry, parse_retry
from steps.lib.errors import UserError
from steps.runner import CACHE_FILE

OUTPUTS_FOLDER = "/tmp/tripod/outputs"
"""$TRIPOD_OUTPUTS in built workflows; the local engine gives each attempt a folder of its own in its place."""

SCHEDULING = (
    "affinity",
    "nodeSelector",
    "schedulerName",
    "securityContext",
    "serviceAccountName",
    "tolerations",
    "volumes",
)
"""Keys of a spec and of a template that mean nothing here."""
TEMPLATE_IGNORED = (*SCHEDULING, "metadata", "priorityClassName")
_CONTAINER_IGNORED = ("image", "imagePullPolicy", "resources", "securityContext", "volumeMounts")
_KINDS = ("inputs.parameters", "workflow.name", "workflow.parameters")


@dataclass(frozen=True, kw_only=True)
class Output:
    """An output parameter: a file that the step writes."""

    name: str
    file: str
    """Relative to the outputs folder."""
    default: str | None
    """The value when there is no such file, and when the task is skipped."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """What one kind of task runs."""

    name: str
    command: tuple[str, ...]
    args: tuple[Text, ...]
    env: tuple[tuple[str, Text], ...]
    """$TRIPOD_OUTPUTS is not in it: the engine sets it."""
    inputs: dict[str, str | None]
    """Input parameter -> its default."""
    outputs: tuple[Output, ...]
    retry: Retry
    deadline_s: int | None
    """Longest time of one attempt."""

    @property
    def refs(self) -> Iterable[Ref]:
        """Every reference in args and env."""
        return [ref for text in (*self.args, *(text for _, text in self.env)) for ref in text.refs]


def parse_template(place: Place, parameters: dict[str, str], exit_handler: bool) -> Template:
    """One container template.

    Args:
        parameters: of the workflow.
        exit_handler: whether it may ask for {{workflow.status}}.

    Raises:
        UserError: a field, a type or a reference is wrong.
    """
    honoured = ("activeDeadlineSeconds", "container", "inputs", "name", "outputs", "retryStrategy")
    place.only(honoured, TEMPLATE_IGNORED)
    container = place.at("container").only(("args", "command", "env"), _CONTAINER_IGNORED)
    kinds = (*_KINDS, "workflow.status") if exit_handler else _KINDS
    command = tuple(literal(part) for part in container.items("command"))
    if not command:
        raise UserError(f"workflow {container.path}.command: missing; an image's own entry point is not known here")
    env = {name: entry.only(("name", "value")).at("value") for name, entry in by_name(container.items("env")).items()}
    folder = literal(env.pop("TRIPOD_OUTPUTS")) if "TRIPOD_OUTPUTS" in env else OUTPUTS_FOLDER
    template = Template(
        name=place.at("name").text(),
        command=command,
        args=tuple(parse_text(part.text(), part.path, kinds) for part in container.items("args")),
        env=tuple((name, parse_text(value.text(), value.path, kinds)) for name, value in env.items()),
        inputs=_inputs(place),
        outputs=_outputs(place, folder),
        retry=parse_retry(place.at("retryStrategy")) if place.has("retryStrategy") else Retry(),
        deadline_s=place.at("activeDeadlineSeconds").positive() if place.has("activeDeadlineSeconds") else None,
    )
    check_parameters(
        template.refs, container, {"inputs.parameters": template.inputs, "workflow.parameters": parameters}
    )
    return template


def _inputs(template: Place) -> dict[str, str | None]:
    if not template.has("inputs"):
        return {}
    inputs: dict[str, str | None] = {}
    for name, place in by_name(template.at("inputs").only(("parameters",)).items("parameters")).items():
        place.only(("default", "name", "value"), ("description",))
        given = [literal(place.at(key)) for key in ("value", "default") if place.has(key)]
        inputs[name] = given[0] if given else None
    return inputs


def _outputs(template: Place, folder: str) -> tuple[Output, ...]:
    if not template.has("outputs"):
        return ()
    outputs = []
    for name, place in by_name(template.at("outputs").only(("parameters",)).items("parameters")).items():
        source = place.only(("name", "valueFrom"), ("description",)).at("valueFrom").only(("default", "path"))
        path = PurePosixPath(literal(source.at("path")))
        if not path.is_relative_to(folder) or path == PurePosixPath(folder) or ".." in path.parts:
            raise source.at("path").wrong(f"a file below {folder} ($TRIPOD_OUTPUTS of the container)")
        default = literal(source.at("default")) if source.has("default") else None
        if name == CACHE_FILE:  # Argo learns by it whether the step took a record; here the file is read anyway
            continue
        outputs.append(Output(name=name, file=str(path.relative_to(folder)), default=default))
    return tuple(outputs)


def check_parameters(refs: Iterable[Ref], place: Place, known: dict[str, Iterable[str]]) -> None:
    """Raise UserError for a reference of a kind in `known` whose parameter is not among the names there."""
    for ref in refs:
        if ref.kind in known and ref.parameter not in (names := list(known[ref.kind])):
            raise UserError(
                f"workflow {place.path}: {{{{{ref.name}}}}}: no such parameter, known are {', '.join(names) or 'none'}"
            )
