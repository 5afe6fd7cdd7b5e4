"""What every engine does with the same workflow. The right answers are Argo Workflows 4.0's."""

import json

import pytest

from tests.engine import workflows
from tests.engine.workflows import ALL, VALUES


def test_order_and_outputs(engine):
    result = engine.run(ALL["diamond"]())
    assert result.phase == "Succeeded"
    assert result.exit_code == 0
    assert {name: result.value(name) for name in "abcd"} == {"a": "1", "b": "b1", "c": "c1", "d": "1-b1-c1"}


@pytest.mark.parametrize(("name", "overlap"), [("side_by_side", True), ("one_at_a_time", False)])
def test_branches_run_side_by_side(engine, name, overlap):
    result = engine.run(ALL[name]())
    (a_start, a_end), (b_start, b_end) = ([float(t) for t in result.value(n).split()] for n in "ab")
    assert (a_start < b_end and b_start < a_end) == overlap


def test_conditions_compare_text(engine):
    phases = engine.run(ALL["conditions"]()).phases()
    assert phases == {
        "equal": "Succeeded",
        "unequal": "Skipped",
        "stage": "Succeeded",
        "empty": "Succeeded",
        "first": "Succeeded",
        "later": "Succeeded",
    }


def test_a_skipped_task_gives_its_default_and_blocks_nobody(engine):
    result = engine.run(ALL["skipped_outputs"]())
    assert result.phase == "Succeeded"
    assert result.phases()["skipped"] == "Skipped"
    assert result.value("takes-default") == "v1"
    assert result.value("takes-own") == "own"
    assert result.value("after") == "ran"


def test_the_output_of_a_skipped_task_without_default_is_an_error(engine):
    result = engine.run(ALL["skipped_output_missing"]())
    assert result.phases() == {"bare": "Skipped", "taker": "Error"}
    assert result.exit_code != 0
    assert "default" in result.message


def test_fan_out_and_collected_outputs(engine):
    result = engine.run(ALL["fan_out"]())
    assert result.phase == "Succeeded"
    assert [result.value(f"items.{i}") for i in range(4)] == ["a", "2", "true", '{"k":"v"}']
    assert json.loads(result.value("collect")) == ["<x y>", "<>", "<3>", '<{"k":[1,2]}>']
    assert json.loads(result.value("collect-objects")) == [{"a": 2, "b": 1}, [3]]


def test_fan_out_over_nothing_is_skipped(engine):
    result = engine.run(ALL["empty_fan_out"]())
    assert result.phases() == {"none": "Succeeded", "each": "Skipped", "collect": "Succeeded"}
    assert result.value("collect") == "[]"


def test_condition_on_an_item(engine):
    result = engine.run(ALL["per_item_condition"]())
    assert [result.phases()[f"each.{i}"] for i in range(3)] == ["Succeeded", "Skipped", "Succeeded"]
    assert json.loads(result.value("collect")) == ["a", "c"]


def test_with_param_of_no_list_is_an_error(engine):
    result = engine.run(ALL["not_a_list"]())
    assert result.phases() == {"word": "Succeeded", "each": "Error"}
    assert "JSON list" in result.message


def test_a_failing_item_fails_its_task(engine):
    result = engine.run(ALL["failing_item"]())
    phases = result.phases()
    assert phases["each"] == "Failed"
    assert [phases[f"each.{i}"] for i in range(3)] == ["Succeeded", "Failed", "Succeeded"]
    assert phases["after"] == "Omitted"
    assert result.exit_code == 3


@pytest.mark.parametrize(("code", "attempts"), [(1, 1), (2, 1), (3, 1), (75, 3), (76, 3), (130, 1), (137, 3), (143, 3)])
def test_retries_follow_the_exit_table(engine, code, attempts):
    result = engine.run(ALL[f"exit_{code}"]())
    assert result.nodes["a"]["attempts"] == attempts
    assert result.nodes["a"]["phase"] == "Failed"
    assert result.exit_code == code
    assert "it went wrong" in result.message


def test_death_by_a_signal_is_retried(engine):
    result = engine.run(ALL["killed_by_a_signal"]())
    assert result.nodes["a"]["attempts"] == 2
    assert result.exit_code == 128 + 9


def test_a_failure_omits_what_depends_on_it_and_nothing_else(engine):
    result = engine.run(ALL["failure"]())
    assert result.phase == "Failed"
    assert result.exit_code == 2
    assert result.phases() == {
        "bad": "Failed",
        "after-bad": "Omitted",
        "after-after": "Omitted",
        "good": "Succeeded",
        "after-good": "Succeeded",
        "last": "Succeeded",
    }
    assert result.nodes["bad"]["message"] == "it went wrong"
    assert "some work" in result.logs["bad"]


@pytest.mark.parametrize(("name", "status", "code"), [("success", "Succeeded", 0), ("failure", "Failed", 3)])
def test_the_exit_handler_sees_how_the_run_ended(engine, name, status, code):
    result = engine.run(ALL[f"exit_handler_of_{name}"]())
    assert result.phase == status
    assert result.exit_code == code
    assert f"status {status} conformance" in result.logs["onExit"]


@pytest.mark.parametrize("source", ["parameters", "outputs"])
def test_values_arrive_byte_for_byte(engine, source):
    result = engine.run(ALL[f"values_of_{source}"]())
    assert result.phase == "Succeeded"
    assert {name: result.value(name) for name in VALUES} == VALUES


def test_missing_output_files(engine):
    result = engine.run(ALL["default_outputs"]())
    assert result.value("known") == "fallback"
    assert result.value("after") == "fallback"
    assert result.phases()["lost"] == "Error"
    assert "'value'" in result.nodes["lost"]["message"]
    assert result.exit_code == 1


def test_the_reason_of_a_failure_is_not_its_missing_output(engine):
    result = engine.run(ALL["fails_before_its_output"]())
    assert result.nodes["a"]["phase"] == "Failed"
    assert result.nodes["a"]["message"] == "RuntimeError: the real reason"
    assert "Traceback" in result.logs["a"]


def test_a_step_that_takes_too_long_fails(engine):
    result = engine.run(ALL["time_out"]())
    assert result.phases() == {"a": "Failed"}
    assert "timed out after 1 s" in result.message
    assert result.wall_s < 30


def test_a_run_that_takes_too_long_fails_and_its_exit_handler_runs(engine):
    result = engine.run(ALL["run_time_out"]())
    assert result.phase == "Failed"
    assert result.phases()["a"] == "Failed"
    assert result.phases()["b"] in ("Pending", "Omitted")
    assert "status Failed" in result.logs["onExit"]


def test_a_cancelled_run_retries_nothing(engine):
    run = engine.start(ALL["sleepers"]())
    run.wait_for_line("a", "pids")
    run.cancel()
    result = run.result()
    assert result.exit_code == 130
    assert result.nodes["a"]["phase"] == "Failed"
    assert result.nodes["a"]["attempts"] == 1
    assert result.nodes["b"]["attempts"] == 0


def test_an_unused_template_does_no_harm(engine):
    unused = workflows.template("unused", "raise SystemExit(1)")
    assert engine.run(workflows.workflow([workflows.task("a")], [unused])).phase == "Succeeded"
