"""The typed wrapper around Hera: a task takes literals and other tasks' Result fields.

Hera checks no names and infers no edges. Here each input is checked against the step's Params when
the workflow is built, and a reference to another task adds the dependency. The DAG still ends in its
diagram (`a >> b`); `Pipeline.inferred` and `Pipeline.drawn` let a test hold the two equal.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field as dataclass_field
from types import GenericAlias, ModuleType, TracebackType
from typing import Annotated, Any, get_args, get_origin, get_type_hints, overload

from hera.workflows import DAG, Container, Env, Parameter, Task as HeraTask, Workflow
from hera.workflows.models import RetryStrategy, TTLStrategy, ValueFrom
from pydantic import BaseModel, TypeAdapter, ValidationError

from pipelines import pods
from pipelines.engine.retry import retry_strategy
from pipelines.engine.templates import OUTPUTS_FOLDER
from pipelines.names import dns_name
from pipelines.settings.site import Site
from steps.contract import Step
from steps.lib.errors import UserError
from steps.runner import CACHE_FILE, first_problem

MAX_VALUE_BYTES = 100 << 10
"""Linux allows 128 KiB an argument (MAX_ARG_STRLEN); longer values go by reference to a blob."""


_KEPT_S = 7 * 24 * 3600
"""How long the cluster keeps a workflow that has ended; its record in the store stays."""


class EngineValue(str):
    """A text input that the engine fills in."""


RUN_NAME = EngineValue("{{workflow.name}}")
RUN_STATUS = EngineValue("{{workflow.status}}")
"""Succeeded, Failed or Error: in the exit handler only."""


@dataclass(frozen=True, kw_only=True)
class Ref:
    """A field of another task's result."""

    task: "Task"
    field: str
    type: Any
    """Its Python type, Annotated stripped; tuple[T, ...] when the task fans out."""

    @property
    def template(self) -> str:
        """As Argo writes it."""
        return f"{{{{tasks.{self.task.name}.outputs.parameters.{self.field}}}}}"


@dataclass(eq=False)
class Task:
    """One task of the DAG. Attributes named like Result fields are Refs to them."""

    name: str
    module: ModuleType
    inputs: dict[str, Any]
    """Params field -> literal or Ref."""
    fan_out: tuple[str, Ref] | None
    """The Params field that takes one item each of a list-valued Ref."""
    hera: HeraTask
    pipeline: "Pipeline"
    needs: dict[str, "Task"] = dataclass_field(default_factory=dict)
    """Tasks whose results this one takes, by name."""

    def __getattr__(self, name: str) -> Ref:
        fields = self.module.Result.model_fields
        if name not in fields:
            raise UserError(f"task {self.name}: its result has no {name!r}, it has {', '.join(fields)}")
        kind = _plain_type(self.module.Result, name)
        if self.fan_out:
            if kind is not str:
                raise UserError(
                    f"task {self.name} fans out, so {name!r} must be a string to be collected, it is {kind}"
                )
            kind = tuple[str, ...]
        return Ref(task=self, field=name, type=kind)

    @overload
    def __rshift__(self, other: "Task") -> "Task": ...
    @overload
    def __rshift__(self, other: "list[Task]") -> "list[Task]": ...
    def __rshift__(self, other: "Task | list[Task]") -> "Task | list[Task]":
        for after in other if isinstance(other, list) else [other]:
            self.pipeline.drawn.add((self.name, after.name))
            if self.name not in (after.hera.depends or "").split(" && "):
                self.hera >> after.hera
        return other

    def __rrshift__(self, others: "list[Task]") -> "Task":
        for before in others:
            before >> self
        return self


class Pipeline:
    """Builds one Workflow: a DAG of steps, one template a step."""

    def __init__(self, *, name: str, run_id: str, site: Site, env: dict[str, str], labels: dict[str, str]):
        self.name = name
        self.site = site
        self.env = env
        self.tasks: dict[str, Task] = {}
        self.drawn: set[tuple[str, str]] = set()
        """Edges of the `>>` diagram."""
        self.workflow = Workflow(
            name=run_id,
            entrypoint="main",
            labels={"tripod/recipe": dns_name(name), **labels},
            parallelism=site.run.max_parallel,
            **_on_cluster(site),
        )

    def __enter__(self) -> "Pipeline":
        self.workflow.__enter__()
        self._dag = DAG(name="main")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.workflow.__exit__(kind, error, trace)

    @property
    def inferred(self) -> set[tuple[str, str]]:
        """Edges that follow from the inputs, less those that a longer path implies."""
        edges = {(need, task.name) for task in self.tasks.values() for need in task.needs}
        after: dict[str, set[str]] = {}
        for name in reversed(self.tasks):  # a task only refers to earlier ones
            direct = {b for a, b in edges if a == name}
            after[name] = direct | {far for near in direct for far in after[near]}
        return {(a, b) for a, b in edges if not any(b in after[mid] for x, mid in edges if x == a)}

    def task(self, module: ModuleType, *, fan_out: str = "", **inputs: Any) -> Task:
        """Add a task that runs the step `module`.

        Args:
            fan_out: the Params field whose input is a list-valued Ref: one call for each item.
            inputs: Params fields: literals, or fields of earlier tasks.

        Raises:
            UserError: the step is there already, an unknown or missing field, a wrong type, or a value that Argo
                cannot carry.
        """
        step_name = module.__name__.removeprefix("steps.")
        name = step_name.replace("_", "-")
        if name in self.tasks:
            raise UserError(f"task {name}: added twice; a step is one task, fan_out calls it for each item of a list")
        given = {field: inputs[field] for field in module.Params.model_fields if field in inputs}
        if unknown := inputs.keys() - given.keys():
            raise UserError(
                f"task {name}: unknown input {sorted(unknown)[0]!r}, allowed are {', '.join(module.Params.model_fields)}"
            )
        items = given.get(fan_out) if fan_out else None
        _check_inputs(name, module.Params, given, fan_out)
        arguments = {field: _argument(name, field, value, fan_out) for field, value in given.items()}
        needs = {value.task.name: value.task for value in given.values() if isinstance(value, Ref)}
        template = self._container("step", step_name, module, list(given))
        with self._dag:
            hera = HeraTask(
                name=name,
                template=template.name,
                arguments=[Parameter(name=field, value=text) for field, text in arguments.items()],
                depends=" && ".join(needs) or None,
                with_param=items.template if isinstance(items, Ref) else None,
            )
        task = Task(name, module, given, (fan_out, items) if isinstance(items, Ref) else None, hera, self, needs)
        self.tasks[name] = task
        return task

    def on_exit(self, module: ModuleType, **inputs: Any) -> None:
        """Run the step `module` when the workflow has ended, however it ended."""
        step_name = module.__name__.removeprefix("steps.")
        _check_inputs(step_name, module.Params, inputs, "")
        arguments = {field: _argument(step_name, field, value, "") for field, value in inputs.items()}
        with self.workflow:
            template = self._container("exit", step_name, module, [])
        template.args = [f"--{field}={text}" for field, text in arguments.items()]
        self.workflow.on_exit = template

    def _container(self, use: str, step_name: str, module: ModuleType, fields: Sequence[str]) -> Container:
        name = f"{use}-{step_name.replace('_', '-')}"
        inputs = [Parameter(name=field) for field in fields]
        return step_container(name, step_name, module, inputs, self.env, self.site)


def step_container(
    name: str, step_name: str, module: ModuleType, inputs: list[Parameter], env: Mapping[str, str], site: Site
) -> Container:
    """The template of a step, wherever it is used: in a pipeline, or published.

    Args:
        name: of the template.
        inputs: its parameters, named like Params fields.
        env: the site's (Site.step_env).
    """
    step: Step = module.step
    own = {"TRIPOD_RUN_ID": "{{workflow.name}}", "TRIPOD_OUTPUTS": OUTPUTS_FOLDER}
    template = Container(
        name=name,
        image=site.image(step.image),
        command=["python", "-m", "steps", step_name],
        args=[f"--{field.name}={{{{inputs.parameters.{field.name}}}}}" for field in inputs],
        inputs=inputs,
        outputs=[
            Parameter(name=field, value_from=ValueFrom(path=f"{OUTPUTS_FOLDER}/{field}"))
            for field in module.Result.model_fields
        ]
        + [Parameter(name=CACHE_FILE, value_from=ValueFrom(path=f"{OUTPUTS_FOLDER}/{CACHE_FILE}", default=""))],
        env=[Env(name=name, value=value) for name, value in {**env, **own}.items()],
        retry_strategy=RetryStrategy.model_validate(retry_strategy(site.run.retries, site.run.backoff_s)),
        active_deadline_seconds=int(step.timeout.total_seconds()),
    )
    if site.engine == "argo":
        pods.equip(template, step, site)
    return template


def _on_cluster(site: Site) -> dict[str, Any]:
    if site.engine != "argo":
        return {}
    return {
        "namespace": site.argo.namespace,
        "service_account_name": site.argo.service_account,
        "security_context": pods.security(),
        "volumes": pods.volumes(site),
        "ttl_strategy": TTLStrategy(seconds_after_completion=_KEPT_S),
    }


def _check_inputs(name: str, params: type[BaseModel], given: dict[str, Any], fan_out: str) -> None:
    """Types of Refs by comparison, literals by pydantic; nothing required may be left out."""
    for field, info in params.model_fields.items():
        wanted = _plain_type(params, field)
        value = given.get(field)
        if field not in given:
            if info.is_required():
                raise UserError(f"task {name}: input {field!r} is missing")
        elif isinstance(value, Ref):
            expected = GenericAlias(tuple, (wanted, ...)) if field == fan_out else wanted
            if value.type != expected:
                raise UserError(
                    f"task {name}: input {field!r} takes {expected}, got {value.type} from {value.task.name}.{value.field}"
                )
        else:
            try:
                TypeAdapter(info.rebuild_annotation()).validate_python(value)
            except ValidationError as e:
                raise UserError(f"task {name}: input {field!r}: {first_problem(e)}") from e


def _argument(name: str, field: str, value: Any, fan_out: str) -> str:
    if field == fan_out:
        return "{{item}}"
    if isinstance(value, Ref):
        return value.template
    return literal(name, field, value)


def literal(name: str, field: str, value: Any) -> str:
    """A value as the text that an engine carries.

    Raises:
        UserError: Argo cannot carry it.
    """
    if isinstance(value, EngineValue):
        return str(value)
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(TypeAdapter(Any).dump_python(value, mode="json"), separators=(",", ":"), ensure_ascii=False)
    if "{{" in text:
        raise UserError(
            f"task {name}: input {field!r} holds '{{{{', which Argo would take for a reference; write it otherwise"
        )
    if len(text.encode()) > MAX_VALUE_BYTES:
        raise UserError(
            f"task {name}: input {field!r} has {len(text.encode())} bytes, allowed are {MAX_VALUE_BYTES}; put it into the store and pass its key"
        )
    return text


def _plain_type(model: type[BaseModel], field: str) -> Any:
    hint = get_type_hints(model, include_extras=True)[field]
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint
