"""Workflows behind an Argo server: the same as behind the Kubernetes API, on a double of such a server."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.clusters import open_workflows
from pipelines.engine.argo import follow
from pipelines.engine.argo.follow import Follower
from pipelines.engine.argo.server import ServerWorkflows
from pipelines.engine.argo.submit import cancel, submit
from pipelines.engine.events import LogLine
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import new_state
from pipelines.settings.site import ArgoSettings, Site
from steps.lib.errors import TemporaryError, UserError
from steps.lib.kube import RefusedError
from tests.engine.argo_server import TOKEN, serving_argo
from tests.engine.argo_stage import NAMESPACE, Stage
from tests.engine.test_argo_follow import document
from tests.kube.api import Api


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def url(api: Api) -> Iterator[str]:
    with serving_argo(api) as url:
        yield url


@pytest.fixture
def workflows(url: str) -> Iterator[ServerWorkflows]:
    found = ServerWorkflows(url, namespace=NAMESPACE, token=TOKEN, retry_s=1)
    yield found
    found.close()


def test_a_run_from_submission_to_its_end(api, workflows, tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "LOOK_EVERY_S", 0.02)
    made = document("fan_out")
    submit(workflows, made)
    stage = Stage(api, "monday")
    assert stage.workflow["spec"] == made["spec"]
    lines: list[str] = []
    follower = Follower(
        workflows,
        workflow := parse_workflow(made),
        new_state(workflow, time.time()),
        scratch=tmp_path,
        listeners=[lambda event: lines.append(event.line) if isinstance(event, LogLine) else None],
    )
    stage.pod("list", "Running")
    stage.write("list", "one", "two")
    follower.look()
    stage.write("list", "three é")
    stage.pod("list", "Failed", code=3, said="main: Error (exit code 3)")
    stage.end("Failed")
    outcome = follower.run()
    assert outcome
    assert (outcome.exit_code, outcome.message) == (3, "list: three é")
    assert lines == ["one", "two", "three é"]


def test_a_lost_reply_does_not_make_two(api, workflows):
    api.drop.append(("POST", "workflows"))
    submit(workflows, document())
    assert len(api.created) == 1


def test_another_workflow_has_the_name(workflows):
    submit(workflows, document("diamond"))
    with pytest.raises(UserError, match="another workflow of that name"):
        submit(workflows, document())


def test_one_that_has_ended_is_replaced_and_cancelled(api, workflows):
    first = submit(workflows, document())["metadata"]["uid"]
    Stage(api, "monday").end("Failed")
    assert not cancel(workflows, "monday")
    assert submit(workflows, document())["metadata"]["uid"] != first
    assert cancel(workflows, "monday")
    assert Stage(api, "monday").workflow["spec"]["shutdown"] == "Terminate"


def test_list_and_what_is_not_there(workflows):
    assert workflows.list() == []
    assert workflows.get("monday") is None
    assert list(workflows.log("monday", "p", follow=True, since="")) == []
    submit(workflows, document())
    assert [there["metadata"]["name"] for there in workflows.list()] == ["monday"]


def test_a_server_that_is_away_is_asked_again_for_a_while(api, workflows):
    api.busy = [503, 502]
    assert workflows.get("monday") is None
    api.away = True
    with pytest.raises(TemporaryError, match=r"Argo server, http://127\.0\.0\.1:\d+: status 503: away; is it up"):
        workflows.get("monday")


def test_a_server_that_is_not_there(api):
    with serving_argo(api) as url:
        pass
    with pytest.raises(TemporaryError, match="is it up, and is the address right"):
        ServerWorkflows(url, namespace=NAMESPACE, token=TOKEN, retry_s=0.3).get("monday")


def test_tokens(url, monkeypatch):
    wrong = ServerWorkflows(url, namespace=NAMESPACE, token="other")
    with pytest.raises(RefusedError, match="token not valid"):
        wrong.get("monday")
    assert ServerWorkflows(url, namespace=NAMESPACE, token=TOKEN.removeprefix("Bearer ")).get("monday") is None
    site = Site(engine="argo", argo=ArgoSettings(server=url, namespace=NAMESPACE))
    monkeypatch.delenv("ARGO_TOKEN", raising=False)
    with pytest.raises(UserError, match=r"\$ARGO_TOKEN is not set"), open_workflows(site):
        pass
    monkeypatch.setenv("ARGO_TOKEN", TOKEN)
    with open_workflows(site) as workflows:
        assert workflows.list() == []


def test_a_ca_that_is_not_there(tmp_path: Path):
    with pytest.raises(UserError, match=r"argo\.ca_bundle"):
        ServerWorkflows(
            "https://127.0.0.1:1", namespace="x", token="t", ca_bundle=str(tmp_path / "ca.crt"), retry_s=0.1
        )
