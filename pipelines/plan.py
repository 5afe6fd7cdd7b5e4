"""What a run will do, before it does it: each step's hit or miss and why, and the size of the training.

A step whose inputs come from a miss is `unknown until <step>`: its key needs that step's result, and
may well turn out to be a hit when the new result equals the old one.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipelines.profiles import profile_lines
from pipelines.settings.recipe import Recipe
from pipelines.settings.site import Site
from pipelines.tasks import Pipeline, Ref, Task
from steps import records
from steps.contract import Context, Params
from steps.lib import vllm
from steps.lib.checkpoint import committed_steps
from steps.lib.errors import UserError
from steps.lib.llama import num_parameters
from steps.lib.store import Store

Verdict = Literal["hit", "runs", "unknown"]


@dataclass(frozen=True, kw_only=True)
class PlannedStep:
    """What will happen to one task."""

    name: str
    verdict: Verdict
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it starts."""

    run_id: str
    store_uri: str
    steps: tuple[PlannedStep, ...]
    training: tuple[str, ...]
    """Lines about the size of the training, for people."""

    def hits(self, name: str) -> bool:
        """Whether a step is taken from its record."""
        return any(step.name == name and step.verdict == "hit" for step in self.steps)

    def with_lines(self, lines: Sequence[str]) -> "Plan":
        """This plan with more to say of the training."""
        return replace(self, training=(*self.training, *lines))

    def lines(self) -> list[str]:
        """The plan as text."""
        width = max(len(step.name) for step in self.steps)
        rows = [f"  {step.name:<{width}}  {step.verdict:<7}  {step.why}".rstrip() for step in self.steps]
        return [f"run {self.run_id}", f"store {self.store_uri}", *self.training, "steps", *rows]


def make_plan(pipe: Pipeline, recipe: Recipe, run_id: str, store: Store | None, store_uri: str) -> Plan:
    """Look up every record that can be known now.

    Args:
        store: None to contact no store: every cached step is unknown then.
    """
    env = {**pipe.env, "TRIPOD_RUN_ID": run_id}
    check_serving(recipe, pipe.site)
    training = [training_line(recipe, pipe.site), checkpoint_line(recipe), *memory_lines(recipe, pipe.site)]
    training += profile_lines(recipe.scale.nodes, pipe.site, datetime.now(UTC))
    if store is None:
        steps = [
            PlannedStep(name=name, verdict="unknown", why="a dry run does not contact this store")
            for name in pipe.tasks
        ]
    else:
        looker = _Looker(store, env, full=pipe.site.cache.verify == "full")
        steps = [looker.look(task) for task in pipe.tasks.values()]
        training += looker.notes
    return Plan(run_id=run_id, store_uri=store_uri, steps=tuple(steps), training=tuple(training))


def check_machine(pipe: Pipeline) -> None:
    """Every library that a step declares is installed here, and vLLM is: better said now than after hours of training.

    Raises:
        UserError: one is not.
    """
    for task in pipe.tasks.values():
        records.library_versions(task.module.step)
    if "deploy" in pipe.tasks and _serves_here(pipe.site):
        vllm.command(os.environ)


def check_serving(recipe: Recipe, site: Site) -> None:
    """The model that will come out can be served where it will be.

    Raises:
        UserError: vLLM's build on this machine refuses its shape.
    """
    if not _serves_here(site):
        return
    config = {"hidden_size": recipe.model.hidden_size, "num_attention_heads": recipe.model.num_heads}
    if problem := vllm.refusal(config, os.environ):
        raise UserError(f"model: {problem}")


def _serves_here(site: Site) -> bool:
    return site.engine == "local" and site.inference.target == "process"


def training_line(recipe: Recipe, site: Site) -> str:
    """Parameters, tokens and ranks in one line."""
    train, gang = recipe.train, site.gang
    tokens = train.steps * train.global_batch * recipe.model.sequence_length
    sizes = ", ".join(f"{nodes} x {gang.processes_per_node}" for nodes in recipe.scale.nodes)
    return (
        f"training {_human(num_parameters(recipe.model))} parameters, {train.steps} steps of {train.global_batch} x "
        f"{recipe.model.sequence_length} tokens = {_human(tokens)} tokens, on {sizes} {gang.device} ({gang.backend})"
    )


def checkpoint_line(recipe: Recipe) -> str:
    """What a save writes, how often, and how many stay."""
    from steps.train.size import checkpoint_bytes

    train = recipe.train
    size = checkpoint_bytes(recipe.model)
    shown = f"{size / 1e9:.1f} GB" if size >= 10**9 else f"{size / 1e6:.1f} MB"
    return f"checkpoints of {shown}, every {train.checkpoint_every_steps} steps, the last {train.keep_checkpoints} stay"


def memory_lines(recipe: Recipe, site: Site) -> list[str]:
    """Memory a device for each admissible size, checked against the site's devices.

    Raises:
        UserError: a size does not divide the batch, or does not fit the device.
    """
    from steps.train.size import estimate

    lines = []
    for nodes in recipe.scale.nodes:
        ranks = nodes * site.gang.processes_per_node
        try:
            need = estimate(recipe.model, recipe.train, ranks)
        except UserError as e:
            raise UserError(f"scale.nodes {nodes}: {e}") from e
        check_memory_here(site, need.total_gib * site.gang.processes_per_node)
        if site.gang.device_memory_gib:
            lines.append(f"memory {need.total_gib:.1f} of {site.gang.device_memory_gib:.1f} GiB a device on {ranks}")
            if need.total_gib > site.gang.device_memory_gib:
                raise UserError(
                    f"scale.nodes {nodes}: needs {need.total_gib:.1f} GiB a device, the site has {site.gang.device_memory_gib:.1f}; "
                    "more nodes, a smaller train.micro_batch or train.activation_checkpointing=full need less"
                )
    return lines


def check_memory_here(site: Site, need_gib: float) -> None:
    """A training on this machine's processors fits its memory: the system would kill it, or swap for days.

    Raises:
        UserError: it does not.
    """
    if site.gang.target != "process" or site.gang.device != "cpu" or site.engine != "local":
        return
    there_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    if need_gib > there_gib:
        raise UserError(
            f"model and train: need {need_gib:.3g} GiB, this machine has {there_gib:.1f}; "
            "a smaller model or train.micro_batch needs less"
        )


class _Looker:
    """Walks the tasks in order and knows the results of those that hit."""

    def __init__(self, store: Store, env: Mapping[str, str], *, full: bool):
        self.store = store
        self.env = env
        self.full = full
        self.results: dict[str, list[dict[str, Any]]] = {}
        """Task name -> its results, one, or one an item."""
        self.notes: list[str] = []

    def look(self, task: Task) -> PlannedStep:
        unknown = [name for name in task.needs if name not in self.results]
        if unknown:
            return PlannedStep(name=task.name, verdict="unknown", why=f"until {', '.join(unknown)}")
        if not task.module.step.cached:
            return PlannedStep(name=task.name, verdict="runs", why="acts on what is live; adopts what is there")
        results, reasons = [], []
        for values in self._calls(task):
            try:
                found, why = self._find(task, task.module.Params.model_validate(values))
            except records.LibraryError as e:  # a machine that only plans and submits
                return PlannedStep(name=task.name, verdict="unknown", why=str(e))
            if found is None:
                return PlannedStep(name=task.name, verdict="runs", why=why)
            results.append(found)
            reasons.append(why)
        self.results[task.name] = results
        return PlannedStep(name=task.name, verdict="hit", why=reasons[0] if reasons else "no items")

    def _find(self, task: Task, params: Params) -> tuple[dict[str, Any] | None, str]:
        module = task.module
        ctx = Context(store=self.store, run_id="plan", key="", scratch=Path("/dev/null"), env=self.env)
        fingerprint = module.fingerprint(params, ctx) if hasattr(module, "fingerprint") else ""
        parts = records.key_parts(module, params, fingerprint)
        record, why = records.find(self.store, parts, module.Result, full=self.full)
        if record is None and parts.step == "train":
            self.notes += _go_on_from(self.store, parts.key)
        return (record.result, why) if record else (None, why)

    def _calls(self, task: Task) -> Iterable[dict[str, Any]]:
        values = {field: self._value(value) for field, value in task.inputs.items()}
        if not task.fan_out:
            yield values
            return
        field = task.fan_out[0]
        for item in values[field]:
            yield {**values, field: item}

    def _value(self, value: Any) -> Any:
        if not isinstance(value, Ref):
            return value
        results = self.results[value.task.name]
        if value.task.fan_out:
            return [result[value.field] for result in results]
        return results[0][value.field]


def _go_on_from(store: Store, train_key: str) -> list[str]:
    steps = committed_steps(store, f"checkpoints/{train_key[:16]}")
    return [f"goes on from checkpoint step {steps[0]}"] if steps else []


def _human(count: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
