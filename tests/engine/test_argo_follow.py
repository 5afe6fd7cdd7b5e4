"""Submitting to, and following on, a double of an API server: what a cluster cannot be made to do at will."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.engine.argo import follow
from pipelines.engine.argo.follow import Follower, GoneError
from pipelines.engine.argo.submit import cancel, submit
from pipelines.engine.argo.workflows import KubernetesWorkflows
from pipelines.engine.events import (
    Event,
    LogLine,
    NodeFinished,
    NodeReady,
    NodeRetried,
    NodeStarted,
    NodeWaits,
    Outcome,
    Progress,
    RunStopping,
)
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import RunState, new_state
from steps.lib.errors import Exit, TemporaryError, UserError
from steps.lib.kube import RefusedError
from steps.lib.kube.kinds import EVENT, POD, WORKFLOW
from tests.engine.argo_stage import NAMESPACE, Stage, open_stage, stamp
from tests.engine.test_argo_status import status
from tests.engine.workflows import ALL, Document, task, workflow
from tests.kube.api import Api, serving


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def workflows(api: Api, tmp_path: Path) -> Iterator[KubernetesWorkflows]:
    with serving(api, tmp_path) as kubeconfig:
        found = open_stage(kubeconfig)
        yield found
        found.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "LOOK_EVERY_S", 0.02)


def document(name: str = "chain", run: str = "monday") -> Document:
    made = ALL[name]()
    made["metadata"]["name"] = run
    return made


class Told:
    """A follower of one run, and what it has told."""

    def __init__(self, workflows: KubernetesWorkflows, made: Document, scratch: Path, state: RunState | None = None):
        self.events: list[Event] = []
        parsed = parse_workflow(made)
        self.state = state or new_state(parsed, time.time())
        self.leave = threading.Event()
        self.follower = Follower(
            workflows,
            parsed,
            self.state,
            scratch=scratch,
            listeners=[self.events.append, self.state.apply],
            leave=self.leave,
        )

    def look(self) -> list[Event]:
        """What is new."""
        start = len(self.events)
        self.follower.look()
        return self.events[start:]

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def run_to_end(workflows: KubernetesWorkflows, made: Document, scratch: Path) -> tuple[Outcome, Told]:
    told = Told(workflows, made, scratch)
    outcome = told.follower.run()
    assert outcome
    return outcome, told


def recorded(api: Api, name: str) -> Document:
    """A run of the suite as it ended on a real cluster, on the double."""
    there = status(name)
    there["metadata"]["namespace"] = NAMESPACE
    api.put(WORKFLOW, there)
    return document(name, there["metadata"]["name"])


# ---- submit


def test_a_workflow_is_created_and_read_back(api, workflows):
    made = submit(workflows, document())
    assert made["metadata"]["annotations"]["tripod/spec"]
    assert made["spec"] == document()["spec"]
    assert [method for method, _ in api.asked] == ["GET", "POST", "GET"]


def test_a_lost_reply_does_not_make_two(api, workflows):
    api.drop.append(("POST", "workflows"))
    submit(workflows, document())
    assert len(api.created) == 1


def test_a_run_that_is_running_is_not_submitted_again(api, workflows):
    submit(workflows, document())
    with pytest.raises(UserError, match="already running: monday; follow it with"):
        submit(workflows, document())


def test_another_workflow_has_the_name(api, workflows):
    submit(workflows, document("diamond"))
    Stage(api, "monday").end("Succeeded")
    with pytest.raises(UserError, match="another workflow of that name; choose another --run-id"):
        submit(workflows, document())


def test_another_is_faster(api, workflows, monkeypatch):
    monkeypatch.setattr(workflows, "get", lambda name: None)
    Stage(api, "monday").put(document("diamond"))
    with pytest.raises(UserError, match="another workflow of that name"):
        submit(workflows, document())


def test_one_that_has_ended_is_replaced(api, workflows):
    first = submit(workflows, document())["metadata"]["uid"]
    Stage(api, "monday").end("Failed")
    assert submit(workflows, document())["metadata"]["uid"] != first


def test_what_the_server_refuses_is_said_in_its_words(api, workflows):
    api.forbidden.append(("POST", "workflows"))
    with pytest.raises(RefusedError, match="is forbidden"):
        submit(workflows, document())


def test_a_server_that_is_away(api, workflows):
    api.away = True
    with pytest.raises(TemporaryError):
        submit(workflows, document())


def test_cancel(api, workflows):
    assert not cancel(workflows, "monday")
    submit(workflows, document())
    assert cancel(workflows, "monday")
    assert Stage(api, "monday").workflow["spec"]["shutdown"] == "Terminate"
    Stage(api, "monday").end("Failed")
    assert not cancel(workflows, "monday")


# ---- follow


def test_a_run_is_told_as_the_local_engine_tells_it(api, workflows, tmp_path):
    made = document("exit_75")
    Stage(api, "monday").put(made)
    stage, told = Stage(api, "monday"), Told(workflows, made, tmp_path)
    stage.pod("a(0)", "Pending")
    stage.retry("a", "Running")
    assert [type(event) for event in told.look()] == [NodeReady]
    stage.pod("a(0)", "Running")
    stage.write("a(0)", "some work", "error: it went wrong")
    assert [type(event) for event in told.look() if not isinstance(event, LogLine)] == [NodeStarted]
    stage.pod("a(0)", "Failed", code=75, said="main: Error (exit code 75)")
    stage.pod("a(1)", "Running")
    stage.write("a(1)", "progress step=3 steps=4", "done", more=True)
    stage.retry("a", "Running")
    told.look()
    (retried,) = told.of(NodeRetried)
    assert (retried.attempt, retried.exit_code, retried.message) == (0, 75, "it went wrong")
    assert [event.attempt for event in told.of(NodeStarted)] == [0, 1]
    stage.write("a(1)")
    stage.pod("a(1)", "Succeeded", code=0)
    stage.retry("a", "Succeeded")
    stage.give("a", value="v", _cache="miss: the source changed")
    stage.end("Succeeded")
    outcome = told.follower.run()
    assert (outcome.phase, outcome.exit_code, outcome.message) == ("Succeeded", 0, "")
    assert outcome.nodes["a"].outputs == {"value": "v"}
    assert outcome.nodes["a"].attempts == 2
    assert told.of(Progress)[0].values == {"step": "3", "steps": "4"}
    assert [event.line for event in told.of(LogLine)] == [
        "some work",
        "error: it went wrong",
        "progress step=3 steps=4",
        "done",
    ]
    assert told.of(NodeFinished)[0].cache == "miss: the source changed"
    assert told.state.nodes["a"].outputs == {"value": "v"}
    assert [line.partition(" ")[2] for line in (tmp_path / "a/1/log").read_text().splitlines()] == [
        "progress step=3 steps=4",
        "done",
    ]


def test_lines_of_argos_executor_are_left_out(api, workflows, tmp_path):
    made = document()
    stage = Stage(api, "monday")
    stage.put(made)
    stage.pod("s0", "Failed", code=1, said="main: Error (exit code 1)")
    stage.write(  # as Argo 4.0.7 writes them
        "s0",
        'time=2026-12-01T04:06:51.752Z level=INFO msg="waiting for signals" signalPath=/var/run/argo/ctr/main/signal argo=true',
        "Error: exit status 7",
        "ValueError: argo=true is the step's own",
        'time=2026-12-01T04:06:52.762Z level=INFO msg="sub-process exited" argo=true error="exit status 1"',
        '{"time":"2026-12-01T04:06:52.762Z","level":"INFO","msg":"no need to save parameter","argo":true}',
        "Error: exit status 1",
    )
    stage.end("Failed")
    outcome, told = run_to_end(workflows, made, tmp_path)
    assert outcome.message == "s0: ValueError: argo=true is the step's own"
    assert [event.line for event in told.of(LogLine)] == [
        "Error: exit status 7",
        "ValueError: argo=true is the step's own",
    ]


def test_the_outcome_is_that_of_the_first_step_that_failed(api, workflows, tmp_path):
    made = recorded(api, "failure")
    outcome, told = run_to_end(workflows, made, tmp_path)
    assert (outcome.phase, outcome.exit_code) == ("Failed", 2)
    assert outcome.message == "bad: main: Error (exit code 2)"
    assert {name: node.phase for name, node in outcome.nodes.items()} == {
        "bad": "Failed",
        "after-bad": "Omitted",
        "after-after": "Omitted",
        "good": "Succeeded",
        "after-good": "Succeeded",
        "last": "Succeeded",
    }
    finished = [event.node for event in told.of(NodeFinished)]
    assert sorted(finished) == sorted(outcome.nodes)
    (line,) = [line.line for line in told.of(LogLine) if line.node == "bad"]
    assert line == "warning: pod conformance-8fb6bc1a-fail-1992260383 is gone, and what it wrote with it"


def test_a_task_that_fans_out_fails_with_its_first_bad_item(api, workflows, tmp_path):
    outcome, told = run_to_end(workflows, recorded(api, "failing_item"), tmp_path)
    assert outcome.exit_code == 3
    assert outcome.message.startswith("each.1: ")
    assert outcome.nodes["each"].exit_code == 3
    finished = [event.node for event in told.of(NodeFinished)]
    assert all(finished.index("each") > finished.index(f"each.{i}") for i in range(3))


def test_collected_outputs_of_a_fan_out(api, workflows, tmp_path):
    outcome, _ = run_to_end(workflows, recorded(api, "fan_out"), tmp_path)
    assert json.loads(outcome.nodes["each"].outputs["value"]) == ["<x y>", "<>", "<3>", '<{"k":[1,2]}>']
    assert json.loads(outcome.nodes["objects"].outputs["value"]) == [{"a": 2, "b": 1}, [3]]


@pytest.mark.parametrize(
    ("name", "node", "why"),
    [
        ("failure", "after-bad", "something that it depends on did not succeed"),
        ("per_item_condition", "each.1", "its condition does not hold"),
        ("empty_fan_out", "each", "there is no item"),
    ],
)
def test_why_a_step_did_not_run(api, workflows, tmp_path, name, node, why):
    assert run_to_end(workflows, recorded(api, name), tmp_path)[0].nodes[node].message == why


def test_a_cancelled_run(api, workflows, tmp_path):
    outcome, told = run_to_end(workflows, recorded(api, "sleepers"), tmp_path)
    assert (outcome.phase, outcome.exit_code, outcome.message) == ("Failed", Exit.CANCELLED, "cancelled")
    assert (outcome.nodes["a"].phase, outcome.nodes["a"].attempts) == ("Failed", 1)
    assert (outcome.nodes["b"].phase, outcome.nodes["b"].attempts) == ("Pending", 0)
    assert [event.reason for event in told.of(RunStopping)] == ["cancelled"]
    assert told.state.stopping == "cancelled"


def test_a_run_that_took_too_long(api, workflows, tmp_path):
    outcome, _ = run_to_end(workflows, recorded(api, "run_time_out"), tmp_path)
    assert outcome.exit_code == 143
    assert outcome.message.startswith("a: the run timed out after 1 s")
    assert outcome.nodes["onExit"].phase == "Succeeded"


def test_a_workflow_that_argo_refuses(api, workflows, tmp_path):
    made = document()
    stage = Stage(api, "monday")
    stage.put(made)
    stage.end("Failed", "invalid spec: templates.main.tasks.s1 templateRef x not found")
    outcome, told = run_to_end(workflows, made, tmp_path)
    assert outcome.exit_code == Exit.USER
    assert outcome.message == "invalid spec: templates.main.tasks.s1 templateRef x not found"
    assert told.events == []


def test_a_pod_that_cannot_start_says_why_once(api, workflows, tmp_path):
    made = document()
    stage, told = Stage(api, "monday"), Told(workflows, made, tmp_path)
    stage.put(made)
    stage.pod("s0", "Pending", said="Unschedulable: 0/1 nodes are available: 1 Insufficient cpu.")
    told.look()
    assert told.look() == []
    assert [event.reason for event in told.of(NodeWaits)] == [
        "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
    ]
    assert told.state.nodes["s0"].waiting.startswith("Unschedulable")
    stage.pod("s0", "Running")
    stage.write("s0")
    told.look()
    assert told.state.nodes["s0"].waiting == ""


def test_what_argo_does_not_tell_is_asked_of_the_pods_events(api, workflows, tmp_path):
    made = document()
    stage, told = Stage(api, "monday"), Told(workflows, made, tmp_path)
    stage.put(made)
    stage.pod("s0", "Pending", said="PodInitializing", startedAt=stamp(time.time() - 60))
    name = stage.pod_path("s0").rpartition("/")[2]
    api.put(POD, {"metadata": {"name": name, "namespace": NAMESPACE}})
    api.put(
        EVENT,
        {
            "metadata": {"name": "e", "namespace": NAMESPACE},
            "involvedObject": {"name": name},
            "type": "Warning",
            "reason": "FailedMount",
            "message": 'secret "tripod-s3" not found',
        },
    )
    told.look()
    assert [event.reason for event in told.of(NodeWaits)] == ['FailedMount: secret "tripod-s3" not found']
    calls = len(api.asked)
    told.look()
    assert len(api.asked) == calls + 1  # not asked again at once


def test_a_workflow_that_no_controller_takes_up_says_so(api, workflows, tmp_path):
    made = workflow([task("a"), task("b"), task("c", depends="a")])
    made["metadata"] |= {"name": "monday", "creationTimestamp": stamp(time.time() - 60)}
    Stage(api, "monday").put(made)
    told = Told(workflows, {**made, "metadata": {"name": "monday"}}, tmp_path)
    told.look()
    told.look()
    assert [event.node for event in told.of(NodeWaits)] == ["a", "b"]
    assert "no Argo controller has taken the workflow up" in told.of(NodeWaits)[0].reason


def test_a_workflow_that_is_gone(workflows, tmp_path):
    with pytest.raises(
        GoneError,
        match=r"run monday: its workflow is gone from namespace team-a of the compute cluster; .* resume monday",
    ):
        Told(workflows, document(), tmp_path).follower.run()


def test_a_server_that_is_away_for_a_while_ends_no_following(api, workflows, tmp_path):
    made = recorded(api, "empty_fan_out")
    api.busy = [503, 503]
    assert run_to_end(workflows, made, tmp_path)[0].exit_code == 0


def test_who_comes_back_is_told_only_what_is_new(api, workflows, tmp_path):
    made = document("chain")
    stage = Stage(api, "monday")
    stage.put(made)
    first = Told(workflows, made, tmp_path / "first")
    stage.pod("s0", "Succeeded", code=0)
    stage.give("s0", value="one")
    stage.write("s0", "of s0")
    stage.pod("s1", "Running")
    stage.write("s1", "early", more=True)
    first.look()
    first.leave.set()
    again = Told(workflows, made, tmp_path / "again", RunState.model_validate_json(first.state.model_dump_json()))
    stage.write("s1", "late")
    stage.pod("s1", "Failed", code=3)
    stage.end("Failed")
    outcome = again.follower.run()
    assert outcome.exit_code == 3
    assert outcome.message == "s1: late"
    assert outcome.nodes["s0"].outputs == {"value": "one"}
    assert {event.node for event in again.events} == {"s1"}
    assert [event.line for event in again.of(LogLine)] == ["early", "late"]
    assert [event.attempt for event in again.of(NodeStarted)] == [0]


def test_following_can_be_left(api, workflows, tmp_path):
    made = document()
    stage = Stage(api, "monday")
    stage.put(made)
    stage.pod("s0", "Running")
    stage.write("s0", "one", more=True)
    told = Told(workflows, made, tmp_path)
    ended: list[Outcome | None] = []
    thread = threading.Thread(target=lambda: ended.append(told.follower.run()))
    thread.start()
    _until(lambda: told.of(LogLine))
    told.leave.set()
    thread.join(10)
    assert ended == [None]
    stage.write("s0")


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
