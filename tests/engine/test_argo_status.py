"""Statuses of real Workflows of Argo 4.0.7 (argo_statuses/, of the conformance suite's documents) in the local engine's words."""

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.engine.argo.failures import explain
from pipelines.engine.argo.status import Attempt, NodeView, phase_of, views
from pipelines.engine.events import Phase
from pipelines.engine.workflow import parse_workflow
from steps.lib.errors import UserError
from steps.lib.kube.waits import why_it_waits
from tests.engine.workflows import ALL, task, template, workflow

STATUSES = Path(__file__).with_name("argo_statuses")


def status(name: str) -> dict:
    """A Workflow as it ended on a cluster."""
    return json.loads((STATUSES / f"{name}.json").read_text())


def seen(name: str) -> dict[str, NodeView]:
    return {view.name: view for view in views(status(name))}


@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("skipped_output_missing", {"bare": "Skipped", "taker": "Error"}),
        ("not_a_list", {"word": "Succeeded", "each": "Error"}),
        ("empty_fan_out", {"none": "Succeeded", "each": "Skipped", "collect": "Succeeded"}),
        ("exit_handler_of_failure", {"a": "Failed", "onExit": "Succeeded"}),
        (
            "failing_item",
            {"each": "Failed", "each.0": "Succeeded", "each.1": "Failed", "each.2": "Succeeded", "after": "Omitted"},
        ),
        (
            "per_item_condition",
            {"each": "Succeeded", "each.0": "Succeeded", "each.1": "Skipped", "each.2": "Succeeded"}
            | {"collect": "Succeeded"},
        ),
    ],
)
def test_nodes_and_their_phases(name, phases):
    assert {view.name: view.phase for view in views(status(name))} == phases


def test_items_of_a_fan_out_and_their_outputs():
    nodes = seen("fan_out")
    assert nodes["each"].items == ("each.0", "each.1", "each.2", "each.3")
    assert [nodes[f"items.{i}"].outputs["value"] for i in range(4)] == ["a", "2", "true", '{"k":"v"}']
    assert nodes["list"].items is None


def test_attempts_of_a_retried_step_in_order():
    node = seen("exit_76")["a"]
    assert node.phase == Phase.FAILED
    assert [attempt.exit_code for attempt in node.attempts] == [76, 76, 76]
    assert [attempt.started for attempt in node.attempts] == sorted(attempt.started for attempt in node.attempts)
    assert [attempt.pod for attempt in node.attempts] == [  # as they were on the cluster
        "conformance-019f96ec-fail-308584190",
        "conformance-019f96ec-fail-778210427",
        "conformance-019f96ec-fail-2389303136",
    ]


def test_a_retry_node_that_argo_left_running_ended_with_its_workflow():
    there = status("sleepers")
    assert phase_of(there) == "Failed"
    assert any(node["type"] == "Retry" and node["phase"] == "Running" for node in there["status"]["nodes"].values())
    node = seen("sleepers")["a"]
    assert node.phase == Phase.FAILED
    assert node.finished == node.attempts[0].finished


def test_a_pod_whose_outputs_have_not_come_still_runs():
    there = status("empty_fan_out")
    there["status"]["phase"] = "Running"
    pod = next(n for n in there["status"]["nodes"].values() if n["name"].endswith(".none"))
    pod["taskResultSynced"] = False
    assert {view.name: view.phase for view in views(there)}["none"] == Phase.RUNNING


def test_compressed_nodes():
    plain = status("fan_out")
    packed = status("fan_out")
    text = json.dumps(packed["status"].pop("nodes")).encode()
    packed["status"]["compressedNodes"] = base64.b64encode(gzip.compress(text)).decode()
    assert views(packed) == views(plain)


def test_nodes_in_a_database_are_named():
    there = status("fan_out")
    there["status"] = {"phase": "Running", "offloadNodeStatusVersion": "fnv:1"}
    with pytest.raises(UserError, match=r"set argo\.server"):
        views(there)


def test_names_with_brackets_newlines_and_attempts():
    nodes = {
        "1": {"id": "1", "name": "r.a(0:x(1)\ny)", "type": "Retry", "phase": "Running", "children": ["2", "3"]},
        "2": {"id": "2", "name": "r.a(0:x(1)\ny)(0)", "type": "Pod", "phase": "Failed", "templateName": "t"},
        "3": {"id": "3", "name": "r.a(0:x(1)\ny)(1)", "type": "Pod", "phase": "Running", "templateName": "t"},
        "4": {"id": "4", "name": "r.onExit", "type": "Retry", "phase": "Running", "children": ["r-5"]},
        "r-5": {"id": "r-5", "name": "r.onExit(0)", "type": "Pod", "phase": "Pending", "templateName": "t"},
    }
    found = {view.name: view for view in views({"metadata": {"name": "r"}, "status": {"nodes": nodes}})}
    assert set(found) == {"a.0", "onExit"}
    assert [attempt.phase for attempt in found["a.0"].attempts] == ["Failed", "Running"]
    assert [attempt.pod for attempt in found["onExit"].attempts] == ["r-t-5"]


def test_a_hit_is_told_by_the_output_of_its_name():
    there = status("empty_fan_out")
    pod = next(n for n in there["status"]["nodes"].values() if n["name"].endswith(".none"))
    pod["outputs"]["parameters"].append({"name": "_cache", "value": "hit: recorded by run monday"})
    node = {view.name: view for view in views(there)}["none"]
    assert node.cache == "hit: recorded by run monday"
    assert set(node.outputs) == {"value"}


# ---- what became of an attempt


RUN = parse_workflow(
    workflow([task("a", "slow")], [template("slow", "pass", activeDeadlineSeconds=7)], activeDeadlineSeconds=99)
)
FAILED = Attempt(pod="p", phase=Phase.FAILED, started=0, finished=1, exit_code=None, message="")


def told(said: str = "", **attempt: object) -> tuple[int | None, str]:
    return explain(replace(FAILED, **attempt), workflow=RUN, template=RUN.tasks[0].template, said=said)


@pytest.mark.parametrize(
    ("code", "argos", "said", "expected"),
    [
        (3, "main: Error (exit code 3)", "the gate said no", (3, "the gate said no")),
        (3, "main: Error (exit code 3)", "", (3, "main: Error (exit code 3)")),
        (130, "main: Error (exit code 130)", "cancelled", (130, "cancelled")),
        (137, "main: OOMKilled (exit code 137)", "step 7", (137, "main: OOMKilled (exit code 137): step 7")),
        (None, "The node was low on resource: memory.", "step 7", (137, "The node was low on resource: memory.")),
        (None, "", "step 7", (137, "the pod is gone")),
        (None, "workflow shutdown with strategy:  Terminate", "step 7", (None, "cancelled: step 7")),
        (None, "Step exceeded its deadline", "", (143, "the run timed out after 99 s")),
    ],
)
def test_a_failure_in_the_local_engines_words(code, argos, said, expected):
    assert told(said, exit_code=code, message=argos) == expected


def test_a_step_that_took_too_long():
    argos = "Pod was active on the node longer than the specified deadline"
    assert told("step 7", message=argos) == (143, "timed out after 7 s: step 7")


def test_an_output_that_was_not_written():
    node = seen("default_outputs")["lost"]
    code, message = explain(node.attempts[0], workflow=RUN, template=RUN.tasks[0].template, said="done")
    assert code == 0
    assert message == "output parameter 'value': the step wrote no file 'value'; it has no default"
    assert told(phase=Phase.ERROR, message="open /var/other: no such file or directory")[1].startswith("open /var")


# ---- why a pod does not start


def waiting(reason: str, message: str = "", kind: str = "containerStatuses") -> dict:
    return {"status": {kind: [{"state": {"waiting": {"reason": reason, "message": message}}}]}}


def event(reason: str, message: str, time: str, kind: str = "Warning") -> dict:
    return {"type": kind, "reason": reason, "message": message, "lastTimestamp": time, "metadata": {}}


@pytest.mark.parametrize(
    ("pod", "events", "why"),
    [
        (None, [], ""),
        (waiting("PodInitializing"), [], ""),
        (waiting("ImagePullBackOff", "Back-off\npulling x"), [], "ImagePullBackOff: Back-off pulling x"),
        (waiting("ErrImagePull", kind="initContainerStatuses"), [], "ErrImagePull"),
        (
            {"status": {"conditions": [{"reason": "Unschedulable", "message": "0/1 nodes are available"}]}},
            [],
            "Unschedulable: 0/1 nodes are available",
        ),
        (
            waiting("PodInitializing"),
            [
                event("FailedMount", "old", "2026-12-01T00:00:01Z"),
                event("FailedMount", 'secret "s3" not found', "2026-12-01T00:00:09Z"),
                event("Pulled", "all is well", "2026-12-01T00:00:10Z", "Normal"),
            ],
            'FailedMount: secret "s3" not found',
        ),
    ],
)
def test_why_a_pod_does_not_start(pod, events, why):
    assert why_it_waits(pod, events) == why


def test_every_status_is_of_a_document_of_the_suite():
    assert {path.stem for path in STATUSES.glob("*.json")} <= ALL.keys()
