"""Everything outside the subset is refused by name, before anything runs."""

import copy
import re

import pytest

from pipelines.engine.workflow import parse_workflow
from steps.lib.errors import UserError
from tests.engine.workflows import ALL, out, task, template, workflow


def changed(path: str, value: object) -> dict:
    """A small workflow with one value put in at a dotted path."""
    document = copy.deepcopy(workflow([task("a"), task("b", value=out("a"), depends="a")]))
    *parents, last = path.split(".")
    place = document
    for part in parents:
        place = place[int(part)] if part.isdecimal() else place[part]
    if isinstance(place, list):
        place[int(last)] = value
    else:
        place[last] = value
    return document


TASK = "spec.templates.0.dag.tasks.1"
KIND = "spec.templates.1"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("kind", "CronWorkflow", "kind: got 'CronWorkflow', allowed is 'Workflow'"),
        ("status", {}, "status: the local engine does not run this"),
        ("spec.templats", [], "spec.templats: .*did you mean 'templates'"),
        ("spec.hooks", {}, "spec.hooks"),
        ("spec.synchronization", {}, "spec.synchronization"),
        ("spec.entrypoint", "nobody", "spec.entrypoint: got 'nobody', allowed is one of the templates main, say"),
        ("spec.entrypoint", "say", "spec.entrypoint: got 'say', allowed is a template with a dag"),
        ("spec.onExit", "main", "spec.onExit: got 'main', allowed is a template with a container"),
        ("spec.onExit", "say", "exit handler gets no arguments, so 'value' needs a default"),
        ("spec.parallelism", 0, "spec.parallelism: got 0, allowed is a whole number from 1"),
        ("spec.templates.0.dag.failFast", False, r"spec.templates\[0\].dag.failFast"),
        ("spec.templates.0.inputs", {}, r"spec.templates\[0\].inputs"),
        ("spec.templates.0.dag.tasks", [], "at least one task"),
        (f"{TASK}.retryStrategi", {}, r"spec.templates\[0\].dag.tasks\[1\].retryStrategi"),
        (f"{TASK}.dependencies", ["a"], r"tasks\[1\].dependencies"),
        (f"{TASK}.continueOn", {"failed": True}, r"tasks\[1\].continueOn"),
        (f"{TASK}.withSequence", {"count": 3}, r"tasks\[1\].withSequence"),
        (f"{TASK}.templateRef", {}, r"tasks\[1\].templateRef"),
        (f"{TASK}.template", "main", "allowed is one of the container templates say"),
        (f"{TASK}.depends", "a || a", "allowed is names of tasks joined by &&"),
        (f"{TASK}.depends", "a.Succeeded", "allowed is names of tasks joined by &&"),
        (f"{TASK}.depends", "c", "allowed is names of the tasks a, b joined by &&"),
        (f"{TASK}.depends", "b", "circle of dependencies among b"),
        (f"{TASK}.name", "a", "'a' is given twice"),
        (f"{TASK}.name", "onExit", "the exit handler's"),
        (f"{TASK}.when", "a == b", "both in single quotes"),
        (f"{TASK}.when", "'a' == 'b' || 'a' == 'a'", "both in single quotes"),
        (f"{TASK}.when", "'a' > 'b'", "both in single quotes"),
        (f"{TASK}.withItems", [], "got 0 items"),
        (f"{TASK}.withItems", ["{{workflow.name}}"], "allowed here is plain text"),
        (f"{TASK}.withItems", [0.5], r"withItems\[0\]: got 0.5, allowed is a string"),
        (f"{TASK}.arguments.artifacts", [], "arguments.artifacts"),
        (f"{TASK}.arguments.parameters.0.name", "valu", "has no input 'valu', it has value"),
        (f"{TASK}.arguments", {}, "input 'value' of template 'say' is missing"),
        (f"{TASK}.arguments.parameters.0.value", 0.1, "quote it"),
        (f"{TASK}.arguments.parameters.0.valueFrom", {}, "valueFrom"),
        (f"{TASK}.arguments.parameters.0.value", "{{item}}", "got '{{item}}', allowed here is"),
        (f"{TASK}.arguments.parameters.0.value", "{{tasks.a.outputs.result}}", "allowed here is"),
        (f"{TASK}.arguments.parameters.0.value", "{{=1+1}}", "allowed here is"),
        (f"{TASK}.arguments.parameters.0.value", "{{workflow.uid}}", "allowed here is"),
        (f"{TASK}.arguments.parameters.0.value", "{{workflow.name", "got '{{workflow.name', allowed here is"),
        (f"{TASK}.arguments.parameters.0.value", "{{workflow.status}}", "allowed here is"),
        (f"{TASK}.arguments.parameters.0.value", "{{workflow.parameters.x}}", "no such parameter, known are none"),
        (
            f"{TASK}.arguments.parameters.0.value",
            "{{tasks.a.outputs.parameters.x}}",
            "no such parameter, known are value",
        ),
        (f"{TASK}.arguments.parameters.0.value", out("c"), "does not depend on; it depends on a"),
        ("spec.templates.0.dag.tasks.0.arguments.parameters.0.value", out("b"), "it depends on none"),
        (f"{KIND}.script", {}, r"spec.templates\[1\].script"),
        (f"{KIND}.steps", [], r"spec.templates\[1\].steps"),
        (f"{KIND}.sidecars", [], r"spec.templates\[1\].sidecars"),
        (f"{KIND}.memoize", {}, r"spec.templates\[1\].memoize"),
        (f"{KIND}.container.livenessProbe", {}, "container.livenessProbe"),
        (f"{KIND}.container.envFrom", [], "container.envFrom"),
        (f"{KIND}.container.workingDir", "/", "container.workingDir"),
        (f"{KIND}.container.command", [], "container.command: missing"),
        (f"{KIND}.container.env.0.valueFrom", {}, r"container.env\[0\].valueFrom"),
        (f"{KIND}.container.args.0", "{{inputs.parameters.other}}", "no such parameter, known are value"),
        (f"{KIND}.container.args.0", "{{workflow.status}}", "allowed here is"),
        (f"{KIND}.inputs.artifacts", [], "inputs.artifacts"),
        (f"{KIND}.inputs.parameters.0.enum", ["a"], r"inputs.parameters\[0\].enum"),
        (f"{KIND}.outputs.artifacts", [], "outputs.artifacts"),
        (f"{KIND}.outputs.parameters.0.globalName", "x", r"outputs.parameters\[0\].globalName"),
        (f"{KIND}.outputs.parameters.0.valueFrom.expression", "1", "valueFrom.expression"),
        (f"{KIND}.outputs.parameters.0.valueFrom.path", "/etc/passwd", "a file below /tmp/tripod/outputs"),
        (f"{KIND}.outputs.parameters.0.valueFrom.path", "/tmp/tripod/outputs/../x", "a file below /tmp/tripod/outputs"),
        (f"{KIND}.activeDeadlineSeconds", "soon", "activeDeadlineSeconds: got 'soon'"),
    ],
)
def test_refused_by_name(path, value, said):
    with pytest.raises(UserError) as error:
        parse_workflow(changed(path, value))
    assert re.search(said, str(error.value)), str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.labels", {"a": "b"}),
        ("spec.serviceAccountName", "x"),
        ("spec.ttlStrategy", {"secondsAfterCompletion": 60}),
        ("spec.podGC", {"strategy": "OnPodCompletion"}),
        ("spec.volumes", [{"name": "x"}]),
        (f"{KIND}.nodeSelector", {"a": "b"}),
        (f"{KIND}.tolerations", []),
        (f"{KIND}.container.resources", {"requests": {"cpu": 1}}),
        (f"{KIND}.container.volumeMounts", []),
        (f"{KIND}.container.securityContext", {}),
    ],
)
def test_ignored(path, value):
    parsed = parse_workflow(changed(path, value))
    assert [task.name for task in parsed.tasks] == ["a", "b"]


def test_numbers_and_booleans_are_text_as_argo_reads_them():
    parsed = parse_workflow(changed(f"{TASK}.arguments.parameters.0.value", True))
    assert parsed.tasks[1].arguments["value"].parts == ("true",)
    parsed = parse_workflow(changed(f"{TASK}.arguments.parameters.0.value", 12345678901234567890))
    assert parsed.tasks[1].arguments["value"].parts == ("12345678901234567890",)


def test_tasks_come_in_the_order_of_their_dependencies():
    assert [t.name for t in parse_workflow(ALL["diamond"]()).tasks] == ["a", "b", "c", "d"]


def test_an_earlier_task_may_be_named_across_others():
    document = workflow([task("a"), task("b", depends="a"), task("c", value=out("a"), depends="b")])
    assert parse_workflow(document).tasks[2].arguments["value"].refs[0].task == "a"


def test_outputs_folder_of_the_container():
    kind = template("own", "")
    kind["container"]["env"][0]["value"] = "/elsewhere"
    kind["outputs"]["parameters"][0]["valueFrom"]["path"] = "/elsewhere/deep/value"
    assert parse_workflow(workflow([task("a", "own")], [kind])).tasks[0].template.outputs[0].file == "deep/value"
