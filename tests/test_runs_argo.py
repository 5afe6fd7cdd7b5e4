"""Runs on Argo in a store: submitted, followed, left, looked at, cancelled and resumed, on a double of the API server."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines import clusters
from pipelines.clusters import open_workflows
from pipelines.engine.argo import follow
from pipelines.engine.events import Outcome
from pipelines.engine.recorder import RunInfo
from pipelines.execute_argo import execute_on_argo
from pipelines.runs import main as runs_command
from pipelines.runs_store import load_run
from pipelines.settings.load import load_site
from pipelines.view import PlainView
from steps.lib.errors import UserError
from steps.lib.kube.kinds import POD, TRAINJOB, WORKFLOW
from steps.lib.log_parts import LogReader, SharedLogCopy, timed
from steps.lib.store import Store
from tests.engine.argo_stage import NAMESPACE, Stage
from tests.engine.workflows import Document, task, workflow
from tests.kube.api import Api, serving

SITE = """
engine = "argo"
[store]
uri = "{store}"
[run]
grace_s = 1
[argo]
namespace = "team-a"
kubeconfig = "{kubeconfig}"
"""
WITH_GPUS = (
    SITE
    + """
[gang]
target = "kubernetes"
[gpu]
namespace = "gpu-team-a"
kubeconfig = "{kubeconfig}"
"""
)


class Cluster:
    """A store, a cluster, and what a person does with them."""

    def __init__(self, store: Store, folder: Path, api: Api, kubeconfig: Path):
        self.store, self.api = store, api
        self.stage = Stage(api, "monday")
        self.site_file = folder / "double.toml"
        self.kubeconfig = kubeconfig
        self.use_site(SITE)

    def use_site(self, text: str) -> None:
        """Another site from now on."""
        self.site_file.write_text(text.format(store=self.store.uri, kubeconfig=self.kubeconfig))
        self.site = load_site(str(self.site_file)).value

    def execute(self, document: Document, *, detach: bool = False) -> Outcome | None:
        """As train does."""
        info = RunInfo(
            run_id="monday",
            command=["test"],
            site="double",
            settings=self.site.model_dump(mode="json"),
            started=time.time(),
        )
        with open_workflows(self.site) as workflows:
            return execute_on_argo(
                document, workflows=workflows, store=self.store, info=info, view=PlainView(verbose=True), detach=detach
            )

    def runs(self, *argv: str) -> int:
        """`python -m pipelines.runs ...`"""
        return runs_command([*argv, "--site", str(self.site_file)])

    def log(self, node: str, attempt: int = 0) -> list[str]:
        """What the store has of an attempt's log."""
        return list(LogReader(self.store, f"runs/monday/logs/{node}/{attempt}", shared=True).lines(last=True))


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def here(store: Store, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(follow, "LOOK_EVERY_S", 0.02)
    with serving(api, tmp_path) as kubeconfig:
        yield Cluster(store, tmp_path, api, kubeconfig)


def two() -> Document:
    made = workflow([task("a"), task("b", depends="a")])
    made["metadata"]["name"] = "monday"
    return made


def play(stage: Stage, *, code: int = 0) -> None:
    """Both steps run; b ends with `code`."""
    stage.pod("a", "Succeeded", code=0)
    stage.give("a", value="x", _cache="hit: recorded by run sunday")
    stage.write("a", "from a")
    stage.pod("b", "Failed" if code else "Succeeded", code=code)
    stage.write("b", "error: not today" if code else "from b")
    stage.end("Failed" if code else "Succeeded")


def in_the_background(call: Callable[[], object], api: Api) -> threading.Thread:
    """Make a call once the workflow has been created."""

    def work() -> None:
        while not any(path.endswith("/monday") for path in api.objects):
            time.sleep(0.01)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_run_from_submission_to_its_end(here, capsys):
    thread = in_the_background(lambda: play(here.stage), here.api)
    outcome = here.execute(two())
    thread.join()
    assert outcome.exit_code == 0
    said = capsys.readouterr().err
    assert "a succeeded after" in said
    assert "hit: recorded by run sunday" in said
    assert "b | from b" in said
    run = load_run(here.store, "monday")
    assert run.on_argo
    assert (run.state.phase, run.state.exit_code) == ("Succeeded", 0)
    assert run.state.nodes["a"].outputs == {"value": "x"}
    assert run.state.nodes["a"].cache == "hit: recorded by run sunday"
    assert here.log("a") == ["from a"]


def test_a_run_that_fails_says_so_and_what_next(here, capsys):
    thread = in_the_background(lambda: play(here.stage, code=3), here.api)
    outcome = here.execute(two())
    thread.join()
    assert outcome.exit_code == 3
    said = capsys.readouterr().err
    assert re.search(r"run monday failed after \S+ in b, exit 3: a gate or the data said no\n  not today\n", said)
    assert "python -m pipelines.runs logs monday b" in said
    assert "python -m pipelines.runs resume monday" in said


def test_detached_runs_are_brought_up_to_date_by_who_looks(here, capsys):
    assert here.execute(two(), detach=True) is None
    assert load_run(here.store, "monday").state.phase == "Running"
    here.stage.pod("a", "Running")
    here.stage.write("a", "from a", more=True)
    assert here.runs("status", "monday") == 0
    assert re.search(r"^monday  Running", said := capsys.readouterr().out, re.MULTILINE)
    assert re.search(r"^  a  Running", said, re.MULTILINE)
    assert here.log("a") == ["from a"]
    play(here.stage)
    assert here.runs("logs", "monday", "b") == 0
    assert capsys.readouterr().out == "from b\n"
    run = load_run(here.store, "monday")
    assert run.state.phase == "Succeeded"
    assert here.log("a") == ["from a", "from a"]  # the second is what the pod wrote in play()


def test_status_comes_back_and_ends_as_the_run_does(here, capsys):
    here.execute(two(), detach=True)
    here.stage.pod("a", "Running")
    for line in ("early", "later"):  # a part each
        here.stage.write("a", line, more=True)
        here.runs("status", "monday")
    assert here.store.head("runs/monday/logs/a/0/part-00001.log")
    thread = threading.Thread(target=lambda: (time.sleep(0.1), play(here.stage, code=75)))
    thread.start()
    assert here.runs("status", "monday", "--follow") == 75
    thread.join()
    assert "run monday failed" in capsys.readouterr().err
    assert here.log("a") == ["early", "later", "from a"]


def test_logs_are_followed_to_the_end(here, capsys):
    here.execute(two(), detach=True)
    here.stage.pod("a", "Running")
    here.stage.write("a", "early", more=True)
    thread = threading.Thread(target=lambda: (time.sleep(0.1), play(here.stage)))
    thread.start()
    assert here.runs("logs", "monday", "--follow") == 0
    thread.join()
    assert capsys.readouterr().out == "a | early\na | from a\nb | from b\n"


def test_ctrl_c_leaves_the_run_alone(here, monkeypatch, capsys):
    monkeypatch.setattr(follow.Follower, "look", _interrupted)
    assert here.execute(two()) is None
    assert "shutdown" not in here.stage.workflow["spec"]
    assert load_run(here.store, "monday").state.phase == "Running"
    monkeypatch.undo()
    play(here.stage)
    assert here.runs("status", "monday", "--follow") == 0
    assert "run monday succeeded" in capsys.readouterr().err


def _interrupted(self: object, **_: object) -> None:
    raise KeyboardInterrupt


def test_a_cluster_that_goes_away_ends_the_following_not_the_run(here, monkeypatch, capsys):
    monkeypatch.setattr(clusters, "_RETRY_S", 0.3)
    here.execute(two(), detach=True)
    here.api.away = True
    assert here.runs("status", "monday", "--follow") == 75
    said = capsys.readouterr().err
    assert "status 503: away; is it up, and is the address right? Run monday does not depend on this; " in said
    assert "`python -m pipelines.runs status monday --follow` comes back to it" in said
    here.api.away = False
    play(here.stage)
    assert here.runs("status", "monday", "--follow") == 0
    assert load_run(here.store, "monday").state.phase == "Succeeded"


def test_list_has_the_live_phases(here, capsys):
    here.execute(two(), detach=True)
    play(here.stage)
    assert here.runs("list") == 0
    assert re.search(r"^monday +Succeeded", capsys.readouterr().out, re.MULTILINE)
    here.api.remove(WORKFLOW, NAMESPACE, "monday")
    assert here.runs("list", "--json") == 0
    [told] = json.loads(capsys.readouterr().out)
    assert told["phase"] == "Lost"
    assert told["message"] == "lost: its workflow is gone from the cluster"
    assert told["finished"] == told["started"], "when it was last seen"


def test_a_run_is_reached_as_this_machine_reaches_the_cluster(here, capsys, tmp_path, monkeypatch):
    """Its record has the paths of the machine that submitted it."""
    here.execute(two(), detach=True)
    play(here.stage)
    elsewhere = here.kubeconfig.rename(tmp_path / "elsewhere")
    here.site_file.write_text(f'engine = "local"\n[store]\nuri = "{here.store.uri}"\n')
    monkeypatch.setenv("TRIPOD_COMPUTE_KUBECONFIG", str(elsewhere))
    assert here.runs("status", "monday") == 0
    assert "monday  Succeeded" in capsys.readouterr().out


def test_a_cluster_that_cannot_be_asked_is_said(here, capsys):
    here.execute(two(), detach=True)
    here.api.forbidden.append(("GET", "workflows"))
    assert here.runs("list") == 0
    out, err = capsys.readouterr()
    assert re.search(r"^monday +Running", out, re.MULTILINE)
    assert "is forbidden; states of runs there are as recorded" in err
    assert here.runs("status", "monday") == 0
    out, err = capsys.readouterr()
    assert "monday  Running" in out
    assert "is forbidden; what follows was recorded before" in err


def test_a_workflow_that_is_gone_is_a_lost_run(here, capsys):
    here.execute(two(), detach=True)
    here.api.remove(WORKFLOW, NAMESPACE, "monday")
    assert here.runs("status", "monday") == 0
    out, err = capsys.readouterr()
    assert "monday  Lost" in out
    assert "its workflow is gone from namespace team-a" in err
    assert "python -m pipelines.runs resume monday" in err


def test_cancel_waits_for_the_end_and_keeps_the_record(here, capsys):
    here.execute(two(), detach=True)
    here.stage.pod("a", "Running")
    here.stage.write("a", "working")

    def obey() -> None:
        while not here.stage.workflow["spec"].get("shutdown"):
            time.sleep(0.01)
        here.stage.pod("a", "Failed", said="workflow shutdown with strategy:  Terminate")
        here.stage.end("Failed", "Stopped with strategy 'Terminate'")

    thread = threading.Thread(target=obey)
    thread.start()
    assert here.runs("cancel", "monday") == 0
    thread.join()
    said = capsys.readouterr().err
    assert re.search(r"run monday ended \S+ after it was asked to stop: Failed, cancelled", said)
    run = load_run(here.store, "monday")
    assert (run.state.exit_code, run.state.message) == (130, "cancelled")
    assert run.state.nodes["a"].message == "cancelled: working"
    assert here.store.head("runs/monday/cancel")
    assert here.runs("cancel", "monday") == 0
    assert "run monday does not run: Failed" in capsys.readouterr().err


def test_resume_runs_again_under_one_record(here, capsys):
    here.execute(two(), detach=True)
    play(here.stage, code=75)  # nobody looked: its end and its logs are in no record yet
    first = here.stage.workflow["metadata"]["uid"]

    def again() -> None:
        while here.api.objects.get(path := WORKFLOW.path(NAMESPACE, "monday"), {}).get("metadata", {}).get("uid") in (
            None,
            first,
        ):
            time.sleep(0.01)
        here.api.logs.clear()
        assert path
        play(here.stage)

    thread = threading.Thread(target=again)
    thread.start()
    assert here.runs("resume", "monday") == 0
    thread.join()
    state = load_run(here.store, "monday").state
    assert (state.phase, state.exit_code) == ("Succeeded", 0)
    assert here.log("b", 0) == ["error: not today"]
    assert here.log("b", 1) == ["from b"]
    assert here.store.head("runs/monday/cancel") is None


def test_a_cancelled_name_may_be_used_again(here):
    """The mark of the first run would end the second one's training at once."""
    here.execute(two(), detach=True)
    play(here.stage, code=2)
    assert here.runs("cancel", "monday") == 0
    assert here.store.head("runs/monday/cancel")
    here.api.remove(WORKFLOW, NAMESPACE, "monday")
    here.execute(two(), detach=True)
    assert here.store.head("runs/monday/cancel") is None


def test_a_record_of_another_version_hides_no_other_run(here, capsys):
    here.execute(two(), detach=True)
    record = json.loads(here.store.get("runs/monday/run.json"))
    record["settings"]["argo"]["of_tomorrow"] = 1
    here.store.put("runs/monday/run.json", json.dumps(record).encode())
    assert here.runs("list") == 0
    seen = capsys.readouterr()
    assert "monday  Running" in seen.out
    assert "settings of another version of this program: argo.of_tomorrow: Extra inputs are not permitted" in seen.err


def test_ctrl_c_ends_logs_that_are_followed(here, monkeypatch, capsys):
    here.execute(two(), detach=True)
    here.stage.pod("a", "Running")
    here.stage.write("a", "early", more=True)
    monkeypatch.setattr(LogReader, "lines", _interrupted)
    assert here.runs("logs", "monday", "--follow") == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "follow"]
    assert load_run(here.store, "monday").state.phase == "Running"


def test_a_running_run_is_not_resumed(here, capsys):
    here.execute(two(), detach=True)
    assert here.runs("resume", "monday") == 2
    assert "error: already running: monday; follow it with" in capsys.readouterr().err


def test_the_name_of_another_run_is_not_taken(here):
    here.execute(two(), detach=True)
    play(here.stage)
    here.api.remove(WORKFLOW, NAMESPACE, "monday")
    assert here.runs("cancel", "monday") == 0
    before = here.store.get("runs/monday/workflow.json")
    other = workflow([task("c")])
    other["metadata"]["name"] = "monday"
    with pytest.raises(UserError, match="another run of that name; choose another --run-id"):
        here.execute(other)
    assert here.store.get("runs/monday/workflow.json") == before
    assert here.store.head("runs/monday/cancel"), "nor is its mark taken away"


def test_what_the_cluster_refuses_is_recorded_as_failed(here):
    here.api.forbidden.append(("POST", "workflows"))
    with pytest.raises(UserError, match="is forbidden"):
        here.execute(two())
    state = load_run(here.store, "monday").state
    assert (state.phase, state.exit_code) == ("Error", 2)
    assert "is forbidden" in state.message


def test_two_who_follow_write_each_line_once(here):
    here.execute(two(), detach=True)
    here.stage.pod("a", "Running")
    here.stage.write("a", *(f"line {i}" for i in range(50)), more=True)
    followers = [threading.Thread(target=here.runs, args=("status", "monday", "--follow")) for _ in range(2)]
    for thread in followers:
        thread.start()
    here.stage.write("a", *(f"line {i}" for i in range(50, 55)), more=True)
    time.sleep(0.2)
    here.stage.write("a", *(f"line {i}" for i in range(55, 59)))
    here.stage.pod("a", "Succeeded", code=0)
    here.stage.give("a", value="x")
    here.stage.pod("b", "Succeeded", code=0)
    here.stage.write("b")
    here.stage.end("Succeeded")
    for thread in followers:
        thread.join(20)
    assert here.log("a") == [f"line {i}" for i in range(59)]


def test_a_training_that_a_run_has_left_is_shown_and_cancelled(here, capsys):
    here.use_site(WITH_GPUS)
    here.execute(two(), detach=True)
    play(here.stage, code=75)
    labels = {"tripod/run": "monday", "tripod/train-key": "0123456789abcdef", "tripod/attempt": "1"}
    meta = {"name": "train-0123456789abcdef-1", "namespace": "gpu-team-a", "labels": labels}
    here.api.put(TRAINJOB, {"metadata": meta, "spec": {}})
    pod_labels = {"jobset.sigs.k8s.io/jobset-name": meta["name"]}
    pod = {"name": "p", "namespace": "gpu-team-a", "labels": pod_labels}
    here.api.put(POD, {"metadata": pod, "status": {"phase": "Running"}})
    assert here.runs("status", "monday") == 0
    said = capsys.readouterr().err
    assert "warning: its TrainJob train-0123456789abcdef-1 is still there with 1 pods; " in said
    assert "`python -m pipelines.runs cancel monday` stops it" in said

    def leave() -> None:
        while not here.api.objects[TRAINJOB.path("gpu-team-a", meta["name"])]["spec"].get("suspend"):
            time.sleep(0.01)
        here.api.remove(POD, "gpu-team-a", "p")

    thread = threading.Thread(target=leave)
    thread.start()
    assert here.runs("cancel", "monday") == 0
    thread.join()
    assert here.api.of(TRAINJOB) == []
    assert "train-0123456789abcdef-1 was asked to save and leave" in capsys.readouterr().err


def test_without_a_way_to_the_gpu_cluster_the_launcher_is_left_to_cancel(here, capsys, monkeypatch):
    monkeypatch.delenv("TRIPOD_GPU_KUBECONFIG", raising=False)
    here.use_site(SITE + '[gang]\ntarget = "kubernetes"\n')
    here.execute(two(), detach=True)
    play(here.stage, code=75)
    assert here.runs("cancel", "monday") == 0
    assert "the GPU cluster is left to the run's launcher" in capsys.readouterr().err


def copy_of(store: Store, path: Path) -> SharedLogCopy:
    return SharedLogCopy(store, "runs/r1/logs/a/0", path, ended=True)


def write_lines(path: Path, *words: str) -> None:
    """As a pod's log that holds these words of one to nine, each at its second."""
    seconds = ["zero", "one", "two", "three", "four", "five", "six", "seven"]
    path.write_bytes(
        b"".join(timed(f"2026-01-01T00:00:0{seconds.index(w)}.000000000Z", w.encode()) + b"\n" for w in words)
    )


def read(store: Store) -> list[str]:
    return list(LogReader(store, "runs/r1/logs/a/0", shared=True).lines(last=True))


def test_who_copies_a_log_later_goes_on_behind_what_is_there(store, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    copy = copy_of(store, first)
    for words in (["one"], ["one", "two"], ["one", "two", "three"]):  # a part each
        write_lines(first, *words)
        copy.copy()
    write_lines(second, "one", "two", "three", "four")
    late = copy_of(store, second)
    late.copy()
    assert read(store) == ["one", "two", "three", "four"]
    assert late.done
    third = tmp_path / "third"
    write_lines(third, "one")  # a pod that is gone by now: less than is there
    gone = copy_of(store, third)
    gone.copy()
    assert gone.done
    assert read(store) == ["one", "two", "three", "four"]


def test_a_log_whose_head_is_gone_is_copied_on_without_loss(store, tmp_path):
    """A kubelet keeps the last 10 MiB of a log: who comes later sees other bytes at the same place."""
    first, second = tmp_path / "first", tmp_path / "second"
    write_lines(first, "one", "two", "three", "four")
    copy_of(store, first).copy()
    write_lines(second, "four", "five")
    copy_of(store, second).copy()
    assert read(store) == ["one", "two", "three", "four", "five"]


def test_a_line_may_hold_a_lone_carriage_return(store, tmp_path):
    """A progress bar's: the next follower must still find the last line's time."""
    first, second = tmp_path / "first", tmp_path / "second"
    bar = timed("2026-01-01T00:00:01.000000000Z", b"10%\r50%\rzz 100%") + b"\n"
    first.write_bytes(bar)
    copy_of(store, first).copy()
    second.write_bytes(bar + timed("2026-01-01T00:00:02.000000000Z", b"error: no") + b"\n")
    copy_of(store, second).copy()
    assert read(store) == ["10%\r50%\rzz 100%", "error: no"]


def test_a_line_that_is_being_written_waits(store, tmp_path):
    path = tmp_path / "log"
    write_lines(path, "one", "two")
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    copy = copy_of(store, path)
    copy.copy()
    assert read(store) == ["one"]
    path.write_bytes(whole)
    copy.copy()
    assert read(store) == ["one", "two"]
    assert copy.done


def test_who_copies_a_log_beside_another_writes_no_part_twice(store, tmp_path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    write_lines(ours, "one")
    write_lines(theirs, "one")
    here, there = copy_of(store, ours), copy_of(store, theirs)
    here.copy()
    there.copy()
    write_lines(ours, "one", "two")
    here.copy()  # there believes that part 1 is still to be written
    write_lines(theirs, "one", "two", "three")
    there.copy()
    write_lines(ours, "one", "two", "three", "four")
    here.copy()
    assert read(store) == ["one", "two", "three", "four"]
    assert here.done
