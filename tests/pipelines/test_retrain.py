"""Training by the clock, on a double of the API server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from pipelines.build import build
from pipelines.retrain import main
from pipelines.runs_store import load_document, load_run
from pipelines.schedule import check_schedule, check_zone, cron_name
from pipelines.settings.load import load
from steps.lib.errors import UserError
from steps.lib.kube.kinds import CRON_WORKFLOW, WORKFLOW
from steps.lib.store import open_store
from tests.kube.api import Api, serving

Retrain = Callable[..., int]


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def retrain(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Retrain]:
    """retrain(verb, ...) -> exit code."""
    monkeypatch.setattr("pipelines.settings.load.open_site_store", lambda site: open_store(f"file://{tmp_path}/store"))
    with serving(api, tmp_path) as kubeconfig:
        values = [f"argo.kubeconfig={kubeconfig}"]
        sets = [word for value in values for word in ("--set", value)]
        yield lambda verb, *words: main([verb, "--model", "llama3-8b", "--site", "prod", *sets, *words])


def test_a_tick_runs_what_train_submits(api, retrain, tmp_path, capsys):
    assert retrain("install", "--schedule", "0 3 * * sun", "--zone", "America/New_York") == 0
    [made] = api.of(CRON_WORKFLOW)
    spec = made["spec"]
    assert (spec["schedules"], spec["timezone"], spec["concurrencyPolicy"]) == (
        ["0 3 * * sun"],
        "America/New_York",
        "Forbid",
    )
    assert spec["startingDeadlineSeconds"] == 3600
    recipe, site = load("llama3-8b", "prod")
    env = spec["workflowSpec"]["templates"][1]["container"]["env"]
    [tree] = [e["value"] for e in env if e["name"] == "TRIPOD_TREE"]
    wanted = yaml.safe_load(build(recipe, site, "any", tree).to_yaml())["spec"]
    assert spec["workflowSpec"] == wanted
    assert (tmp_path / f"store/blobs/sha256/{tree}").is_file(), "the pods' sources are in the store"
    assert "trains llama3-8b at '0 3 * * sun', America/New_York" in capsys.readouterr().out


def test_suspend_stays_over_an_install_and_resume_ends_it(api, retrain, capsys):
    retrain("install")
    assert retrain("suspend") == 0
    assert retrain("install", "--schedule", "0 4 * * *") == 0
    [made] = api.of(CRON_WORKFLOW)
    assert (made["spec"]["suspend"], made["spec"]["schedules"]) == (True, ["0 4 * * *"])
    capsys.readouterr()
    assert retrain("show") == 0
    assert (
        "retrain-llama3-8b  suspended  '0 4 * * *' Europe/Berlin  last never\n  no run yet" in capsys.readouterr().out
    )
    assert retrain("resume") == 0
    assert api.of(CRON_WORKFLOW)[0]["spec"]["suspend"] is False


def test_a_tick_gets_its_record_from_who_looks_first(api, retrain, tmp_path, capsys, monkeypatch):
    """As `train` would have begun it: from then on `runs` knows it."""
    retrain("install")
    [made] = api.of(CRON_WORKFLOW)
    tick(api, "retrain-llama3-8b-7", "Running")
    [workflow] = api.of(WORKFLOW)
    workflow["metadata"]["annotations"] = made["spec"]["workflowMetadata"]["annotations"]
    workflow["spec"] = made["spec"]["workflowSpec"]
    capsys.readouterr()
    assert retrain("show") == 0
    assert "next: python -m pipelines.runs status retrain-llama3-8b-7" in capsys.readouterr().out
    store = open_store(f"file://{tmp_path}/store")
    run = load_run(store, "retrain-llama3-8b-7")
    assert (run.info.recipe, run.info.site, run.on_argo, run.state.phase) == ("llama3-8b", "prod", True, "Running")
    assert list(run.state.nodes) == [t["name"] for t in workflow["spec"]["templates"][0]["dag"]["tasks"]]
    document = load_document(store, "retrain-llama3-8b-7")
    assert (document["metadata"]["name"], document["spec"]) == ("retrain-llama3-8b-7", workflow["spec"])
    before = run.info.started
    assert retrain("show") == 0
    assert load_run(store, "retrain-llama3-8b-7").info.started == before, "begun once"


def tick(api: Api, name: str, phase: str) -> None:
    """A workflow of the schedule, as Argo makes it."""
    labels = {"workflows.argoproj.io/cron-workflow": "retrain-llama3-8b"}
    status = {"phase": phase, "startedAt": "2026-03-01T02:00:00Z"}
    if phase != "Running":
        status["finishedAt"] = "2026-03-01T03:00:00Z"
    meta = {"name": name, "namespace": "team-a", "labels": labels, "ownerReferences": [{"kind": "CronWorkflow"}]}
    api.put(WORKFLOW, {"metadata": meta, "status": status})


def test_show_has_the_runs_and_remove_leaves_those_that_go_on(api, retrain, capsys):
    retrain("install")
    tick(api, "retrain-llama3-8b-1", "Failed")
    tick(api, "retrain-llama3-8b-2", "Running")
    capsys.readouterr()
    assert retrain("show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(run["run_id"], run["phase"]) for run in shown["runs"]] == [
        ("retrain-llama3-8b-2", "Running"),
        ("retrain-llama3-8b-1", "Failed"),
    ]
    assert retrain("remove") == 0
    assert api.of(CRON_WORKFLOW) == []
    owned = {w["metadata"]["name"]: "ownerReferences" in w["metadata"] for w in api.of(WORKFLOW)}
    assert owned == {"retrain-llama3-8b-1": True, "retrain-llama3-8b-2": False}, "nothing is deleted with the schedule"


@pytest.mark.parametrize("verb", ["show", "suspend", "resume", "remove"])
def test_what_is_not_installed(retrain, capsys, verb):
    assert retrain(verb) == 2
    said = capsys.readouterr().err
    assert "llama3-8b is not retrained by the clock in namespace team-a; `python -m pipelines.retrain install" in said


@pytest.mark.parametrize("schedule", ["0 2 * * *", "*/5 0-6,22 1 jan,JUL 1-5", "0 0 * * sun", "0 12 * * 0"])
def test_schedules_that_are_right(schedule):
    check_schedule(schedule)


@pytest.mark.parametrize(
    "schedule",
    [
        "",
        "@daily",
        "0 2 * *",
        "60 * * * *",
        "* 24 * * *",
        "5-1 * * * *",
        "*/0 * * * *",
        "0 2 0 * *",
        "x * * * *",
        "0 12 * * 7",
    ],
)
def test_schedules_that_argo_would_take_and_never_run(schedule):
    with pytest.raises(UserError, match="--schedule: "):
        check_schedule(schedule)


def test_a_schedule_is_stopped_whatever_has_become_of_its_recipe(api, retrain, tmp_path, capsys):
    retrain("install")
    [made] = api.of(CRON_WORKFLOW)
    api.put(CRON_WORKFLOW, made | {"metadata": made["metadata"] | {"name": "retrain-gone"}})
    words = ["--site", "prod", "--set", f"argo.kubeconfig={tmp_path}/kubeconfig.json", "--set", "train.steps=no"]
    assert main(["suspend", "--model", "gone", *words]) == 0
    assert "retrain-gone: suspended" in capsys.readouterr().out


def test_zones_and_names():
    check_zone("UTC")
    with pytest.raises(UserError, match="--zone: got 'CEST', allowed are IANA names"):
        check_zone("CEST")
    assert len(cron_name("x" * 90)) <= 52, "ten digits and a dash come behind it"


def test_what_could_never_run_is_refused_at_once(api, retrain, capsys):
    assert retrain("install", "--set", "scale.nodes=[20]", "--set", "train.global_batch=9600") == 2
    assert "the largest profile, big, gives training 96" in capsys.readouterr().err
    assert api.of(CRON_WORKFLOW) == []
    assert retrain("install", "--set", "store.uri=file:///tmp/x") == 2
    assert "store.uri is file:///tmp/x, allowed with engine argo is s3://bucket/prefix" in capsys.readouterr().err
    assert main(["install", "--model", "tiny", "--site", "local"]) == 2
    assert "site local: runs on this machine, which keeps no schedule" in capsys.readouterr().err
