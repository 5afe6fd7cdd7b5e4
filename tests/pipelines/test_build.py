"""The built workflow: its graph, its checks, its YAML."""

import pytest
import yaml

from pipelines.build import pipeline
from pipelines.settings.load import load
from pipelines.settings.site import Site
from pipelines.tasks import MAX_VALUE_BYTES, Pipeline
from steps import export, ingest, notify, tokenize, tokenizer
from steps.lib.errors import UserError


@pytest.mark.parametrize(("model", "site"), [("tiny", "local"), ("llama3-8b", "prod")])
def test_the_diagram_is_the_inferred_graph(model, site):
    pipe = pipeline(*load(model, site), run_id="run-1")
    assert pipe.drawn == pipe.inferred
    assert pipe.drawn == {
        ("ingest", "tokenizer"),
        ("tokenizer", "tokenize"),
        ("tokenize", "publish-dataset"),
        ("publish-dataset", "train"),
        ("train", "evaluate"),
        ("train", "export"),
        ("evaluate", "register"),
        ("export", "register"),
        ("register", "deploy"),
    }


def test_every_referenced_task_is_a_dependency():
    tree = _yaml("tiny", "local")
    tasks = next(t for t in tree["spec"]["templates"] if t["name"] == "main")["dag"]["tasks"]
    for task in tasks:
        depends = task.get("depends", "").split(" && ")
        for parameter in task["arguments"]["parameters"]:
            if parameter["value"].startswith("{{tasks."):
                assert parameter["value"].split(".")[1] in depends, (task["name"], parameter)


def test_steps_are_the_same_on_every_site():
    def commands(site):
        containers = (t.get("container") for t in _yaml("tiny", site)["spec"]["templates"])
        return [(c["command"], c["args"]) for c in containers if c]

    assert commands("local") == commands("prod")


def test_retries_sit_on_steps_not_on_the_workflow():
    spec = _yaml("tiny", "local")["spec"]
    assert "retryStrategy" not in spec
    assert all("retryStrategy" in t for t in spec["templates"] if "container" in t)


def test_no_pod_of_a_step_asks_for_more_than_the_site_has(monkeypatch):
    def cpus(*overrides: str) -> list[str]:
        workflow = pipeline(*load("tiny", "prod", overrides), run_id="run-1").workflow
        templates = yaml.safe_load(workflow.to_yaml())["spec"]["templates"]
        return [t["container"]["resources"]["requests"]["cpu"] for t in templates if "container" in t]

    assert max(float(text) for text in cpus()) > 1
    assert set(cpus("argo.max_cpus=0.5")) == {"0.5"}


def _yaml(model: str, site: str) -> dict:
    return yaml.safe_load(pipeline(*load(model, site), run_id="run-1").workflow.to_yaml())


def _pipe() -> Pipeline:
    return Pipeline(name="x", run_id="x-1", site=Site(engine="local"), env={}, labels={})


def test_an_unknown_input_is_named():
    with (
        _pipe() as pipe,
        pytest.raises(UserError, match="task ingest: unknown input 'sauce', allowed are source, include"),
    ):
        pipe.task(ingest, source="/x", sauce=1)


def test_a_missing_input_is_named():
    with _pipe() as pipe, pytest.raises(UserError, match="task ingest: input 'source' is missing"):
        pipe.task(ingest)


def test_a_wrong_literal_is_refused():
    with (
        _pipe() as pipe,
        pytest.raises(UserError, match=r"task ingest: input 'holdout_fraction': .*less than 1, got 2"),
    ):
        pipe.task(ingest, source="/x", holdout_fraction=2)


def test_a_reference_of_another_type_is_refused():
    with _pipe() as pipe:
        docs = pipe.task(ingest, source="/x")
        with pytest.raises(
            UserError, match=r"input 'vocab_size' takes <class 'int'>, got <class 'str'> from ingest\.docs"
        ):
            pipe.task(tokenizer, docs=docs.docs, vocab_size=docs.docs)


def test_a_result_without_such_a_field_is_refused():
    with _pipe() as pipe:
        docs = pipe.task(ingest, source="/x")
        with pytest.raises(UserError, match="task ingest: its result has no 'text', it has docs, partitions"):
            _ = docs.text


def test_a_fan_out_takes_a_list_and_gives_a_list():
    with _pipe() as pipe:
        docs = pipe.task(ingest, source="/x")
        tokens = pipe.task(tokenize, fan_out="partition", docs=docs.docs, tokenizer="t", partition=docs.partitions)
        assert tokens.tokens.type == tuple[str, ...]
        with pytest.raises(UserError, match="'num_tokens' must be a string to be collected"):
            _ = tokens.num_tokens


def test_braces_and_long_values_are_refused():
    with _pipe() as pipe:
        with pytest.raises(UserError, match="which Argo would take for a reference"):
            pipe.task(export, checkpoint="c", dataset="d", name="{{workflow.name}}")
        with pytest.raises(UserError, match=f"has {MAX_VALUE_BYTES + 1} bytes, allowed are {MAX_VALUE_BYTES}"):
            pipe.task(ingest, source="x" * (MAX_VALUE_BYTES + 1))


def test_a_step_that_is_there_already_is_refused():
    """Both would be one task of the workflow, with the arguments of one of them."""
    with _pipe() as pipe:
        pipe.task(ingest, source="/x")
        with pytest.raises(UserError, match="task ingest: added twice"):
            pipe.task(ingest, source="/y", text_field="body")
    assert pipe.tasks["ingest"].inputs["source"] == "/x"


def test_an_exit_handler_is_a_template_of_its_own():
    """A pipeline may also run the same step as a task: neither changes the other's arguments."""
    with _pipe() as pipe:
        pipe.task(notify, run="r", status="s", pipeline="p", model="m")
        pipe.on_exit(notify, run="r2", status="s2", pipeline="p2", model="m2")
    templates = {t["name"]: t for t in yaml.safe_load(pipe.workflow.to_yaml())["spec"]["templates"]}
    assert templates["step-notify"]["container"]["args"][0] == "--run={{inputs.parameters.run}}"
    assert templates["exit-notify"]["container"]["args"][0] == "--run=r2"
