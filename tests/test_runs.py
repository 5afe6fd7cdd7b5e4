"""Runs in a store: records, logs, the `runs` command, cancel, loss and resume."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.engine.events import LogLine, NodeFinished, NodeStarted, Phase
from pipelines.engine.holder import beat, find_holder, held, this_process
from pipelines.engine.recorder import Recorder, RunInfo, begin_record
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import new_state
from pipelines.runs import main as runs_command
from pipelines.runs_store import load_document, load_run, load_runs, state_before
from steps.lib.errors import TemporaryError, UserError
from steps.lib.log_parts import EAGER_BYTES, LogCopy, LogReader
from tests.engine.engines import is_alive, wait_until
from tests.engine.test_local import WITH_PARENT
from tests.engine.workflows import FAIL, out, task, template, workflow

ROOT = Path(__file__).parents[1]
DRIVER = """
import json, sys, time
from pipelines.engine.recorder import RunInfo
from pipelines.execute import execute
from pipelines.view import choose_view
from steps.lib.store import open_store
document = json.load(sys.stdin)
info = RunInfo(run_id=document["metadata"]["name"], command=["test"], recipe="tiny", site="local", started=time.time())
outcome = execute(document, store=open_store(sys.argv[1]), info=info, view=choose_view(), grace_s=5)
sys.exit(outcome.exit_code)
"""
ONCE = (
    "import os, pathlib, sys, time; mark = pathlib.Path(sys.argv[1]); first = not mark.exists(); mark.touch(); "
    "print('first' if first else 'again', flush=True); "
)
"""Tells in its log whether it has run before."""


class Runs:
    """Runs workflows in a store of its own, and the `runs` command on it."""

    def __init__(self, folder: Path):
        self.store_uri = f"file://{folder}/store"
        self.env = os.environ | {"TRIPOD_STORE": self.store_uri, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, document: dict) -> subprocess.Popen[str]:
        """Start a run in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, self.store_uri],
            env=self.env,
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        assert process.stdin
        json.dump(document, process.stdin)
        process.stdin.close()
        process.stdin = None
        return process

    def run(self, document: dict) -> tuple[int, str]:
        """Exit code and what was said."""
        process = self.start(document)
        said = process.communicate(timeout=60)[1]
        return process.returncode, said

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """`python -m pipelines.runs ...`"""
        return subprocess.run(
            [sys.executable, "-m", "pipelines.runs", *argv],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def log(self, run_id: str, step: str) -> str:
        """What a step has written so far."""
        return self.command("logs", run_id, step).stdout

    def close(self) -> None:
        """End what a failed test has left."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def runs(tmp_path):
    """An empty store with commands."""
    with_commands = Runs(tmp_path)
    yield with_commands
    with_commands.close()


def named(run_id: str, document: dict) -> dict:
    """The workflow under another run id."""
    return document | {"metadata": {"name": run_id}}


def failing(run_id: str = "r1") -> dict:
    """A step that succeeds, one that fails, one that is omitted."""
    tasks = [task("first"), task("bad", "fail", value="3", depends="first"), task("last", depends="bad")]
    return named(run_id, workflow(tasks, [template("fail", FAIL)]))


def sleeping(run_id: str, mark: Path) -> dict:
    """A step that sleeps the first time and ends at once the second time."""
    code = ONCE + WITH_PARENT + "time.sleep(600 if first else 0)"
    tasks = [task("first"), task("a", "once", value=str(mark), depends="first")]
    return named(run_id, workflow(tasks, [template("once", code, default="")]))


def test_a_failure_is_told_with_its_reason_and_the_next_command(runs):
    code, said = runs.run(failing())
    assert code == 3
    assert "run r1 failed after" in said
    assert "in bad, exit 3: a gate or the data said no" in said
    assert "  it went wrong" in said
    assert "  | some work" in said
    assert "next: python -m pipelines.runs logs r1 bad" in said


def test_status_and_logs_of_a_run_that_has_ended(runs):
    runs.run(failing())
    status = runs.command("status", "r1")
    assert status.returncode == 0
    rows = [line.split()[:2] for line in status.stdout.splitlines()[1:]]
    assert rows == [["first", "Succeeded"], ["bad", "Failed"], ["last", "Omitted"]]
    told = json.loads(runs.command("status", "r1", "--json").stdout)
    assert (told["phase"], told["exit_code"], told["recipe"]) == ("Failed", 3, "tiny")
    assert told["nodes"]["first"]["outputs"] == {"value": "x"}
    assert runs.log("r1", "bad") == "some work\nerror: it went wrong\n"
    assert runs.command("logs", "r1").stdout == "bad | some work\nbad | error: it went wrong\n"
    assert runs.command("status", "r1", "--follow").returncode == 3


def test_list_shows_the_newest_first(runs):
    assert "no runs in" in runs.command("list").stderr
    runs.run(failing("r1"))
    runs.run(named("r2", workflow([task("a")])))
    rows = [line.split()[:2] for line in runs.command("list").stdout.splitlines()]
    assert rows == [["RUN", "STATE"], ["r2", "Succeeded"], ["r1", "Failed"]]
    assert [run["run_id"] for run in json.loads(runs.command("list", "--json").stdout)] == ["r2", "r1"]


@pytest.mark.parametrize("verb", ["status", "logs", "cancel", "resume"])
def test_an_unknown_run_is_refused_with_the_closest_names(runs, verb):
    runs.run(named("tiny-2026", workflow([task("a")])))
    done = runs.command(verb, "tiny-2025")
    assert done.returncode == 2
    assert "'tiny-2025'" in done.stderr
    assert "tiny-2026" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_step_is_refused_with_the_closest_names(runs):
    runs.run(failing())
    done = runs.command("logs", "r1", "frist")
    assert done.returncode == 2
    assert "did you mean first" in done.stderr


def test_cancel_stops_the_run_and_leaves_no_process(runs, tmp_path):
    process = runs.start(sleeping("r1", tmp_path / "mark"))
    pid = int(wait_until(lambda: "pid" in runs.log("r1", "a") and runs.log("r1", "a"), "the step").split()[-1])
    assert json.loads(runs.command("status", "r1", "--json").stdout)["phase"] == "Running"
    done = runs.command("cancel", "r1")
    assert done.returncode == 0
    assert "run r1 ended" in done.stderr
    assert process.wait(60) == 130
    assert not is_alive(pid)
    assert json.loads(runs.command("status", "r1", "--json").stdout)["exit_code"] == 130
    again = runs.command("cancel", "r1")
    assert again.returncode == 0
    assert "does not run" in again.stderr


def test_a_killed_engine_leaves_a_lost_run_that_can_be_resumed(runs, tmp_path):
    process = runs.start(sleeping("r1", tmp_path / "mark"))
    pid = int(wait_until(lambda: "pid" in runs.log("r1", "a") and runs.log("r1", "a"), "the step").split()[-1])
    process.kill()
    process.wait()
    wait_until(lambda: not is_alive(pid), "the end of the step")
    status = runs.command("status", "r1")
    assert status.stdout.startswith("r1  Lost")
    assert "python -m pipelines.runs resume r1" in status.stderr
    assert "resume r1" in runs.command("list").stdout
    assert runs.command("status", "r1", "--follow").returncode == 2
    resumed = runs.command("resume", "r1")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(runs.command("status", "r1", "--json").stdout)["phase"] == "Succeeded"
    log = runs.log("r1", "a").splitlines()
    assert [line for line in log if not line.startswith("pid")] == ["first", "again"]


def test_a_run_that_runs_is_not_started_twice(runs, tmp_path):
    runs.start(sleeping("r1", tmp_path / "mark"))
    wait_until(lambda: "pid" in runs.log("r1", "a"), "the step")
    done = runs.command("resume", "r1")
    assert done.returncode == 2
    assert "already running: r1" in done.stderr
    assert "status r1 --follow" in done.stderr
    assert runs.command("cancel", "r1").returncode == 0


def test_logs_are_followed_until_the_run_ends(runs, tmp_path):
    go = tmp_path / "go"
    code = (
        "import pathlib, sys, time; print('waiting', flush=True)\n"
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\nprint('went on')"
    )
    kind = template("wait", code, default="")
    runs.start(named("r1", workflow([task("a"), task("b", "wait", value=str(go), depends="a")], [kind])))
    wait_until(lambda: runs.command("status", "r1").returncode == 0, "the run")
    follower = subprocess.Popen(
        [sys.executable, "-m", "pipelines.runs", "logs", "r1", "b", "--follow"],
        env=runs.env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert follower.stdout
    assert follower.stdout.readline() == "waiting\n"
    go.touch()
    assert follower.communicate(timeout=60)[0] == "went on\n"
    assert follower.returncode == 0


def test_the_command_imports_nothing_heavy():
    code = (
        "import sys; import pipelines.runs as runs; runs.parser().format_help(); "
        "print({'hera', 'boto3', 'pyarrow', 'rich', 'pydantic', 'torch'} & set(sys.modules))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


# ---- the parts -----------------------------------------------------------------------------------


def test_only_one_process_holds_a_run(store):
    with held(store, "r1") as holder:
        assert find_holder(store, "r1") == holder
        with pytest.raises(UserError, match="already running: r1"), held(store, "r1"):
            pass
    assert find_holder(store, "r1") is None


def test_who_was_taken_over_leaves_the_new_holder_alone(store):
    usurper = this_process().model_copy(update={"host": "elsewhere"})
    with held(store, "r1") as holder:
        store.put("runs/r1/engine.json", usurper.model_dump_json().encode())
        with pytest.raises(UserError, match=r"run r1 was taken over by process .* on elsewhere"):
            beat(store, "r1", holder)
    assert find_holder(store, "r1") == usurper


def test_a_run_that_was_killed_while_it_began_does_not_break_the_list(store):
    document = workflow([task("a")])
    state = new_state(parse_workflow(document), 1.0)
    begin_record(store, RunInfo(run_id="r1", command=[], started=1.0), document, state)
    assert [run.info.run_id for run in load_runs(store)[0]] == ["r1"]
    store.delete(["runs/r1/run.json"])  # written last
    assert load_runs(store) == ([], [])
    assert state_before(store, "r1") is None


def test_a_run_without_its_state_or_that_may_not_be_read_does_not_hide_the_others(store):
    for run_id in ("broken", "good", "secret"):
        state = new_state(parse_workflow(workflow([task("a")])), 1.0)
        begin_record(store, RunInfo(run_id=run_id, command=[], started=1.0), {}, state)
    store.delete(["runs/broken/status.json"])
    runs, problems = load_runs(Guarded(store, "runs/secret/run.json"))
    assert [run.info.run_id for run in runs] == ["good"]
    assert problems == [
        f"run broken: runs/broken/status.json in {store.uri}: missing; the run's record is damaged, "
        "start its command anew",
        "run secret: get runs/secret/run.json: permission denied",
    ]
    with pytest.raises(UserError, match=r"^get runs/good/workflow.json: permission denied"):
        load_document(Guarded(store, "runs/good/workflow.json"), "good")


@pytest.mark.parametrize("name", ["run.json", "status.json", "engine.json"])
def test_a_run_that_cannot_be_read_does_not_hide_the_others(store, name, monkeypatch, capsys):
    for run_id in ("good", "broken"):
        state = new_state(parse_workflow(workflow([task("a")])), 1.0)
        begin_record(store, RunInfo(run_id=run_id, command=[], started=1.0), {}, state)
    store.put(f"runs/broken/{name}", b"{")
    monkeypatch.setenv("TRIPOD_STORE", store.uri)
    assert runs_command(["list"]) == 0
    shown = capsys.readouterr()
    assert [line.split()[:2] for line in shown.out.splitlines()[1:]] == [["good", "Lost"]]
    assert f"warning: run broken: runs/broken/{name} in {store.uri}: unreadable" in shown.err
    assert runs_command(["status", "broken"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: runs/broken/{name} in ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        ({}, True),
        ({"born": "1"}, False),
        ({"boot_id": "another", "beat": 1000.0}, True),
        ({"boot_id": "another", "beat": 900.0}, False),
        ({"pid_space": "another", "born": "1", "beat": 1000.0}, True),
        ({"pid": 2**22 + 1}, False),
        ({"host": "elsewhere", "beat": 1000.0}, True),
        ({"host": "elsewhere", "beat": 900.0}, False),
    ],
)
def test_whether_a_holder_lives(store, change, alive):
    """Another process with the same number is not taken for it; elsewhere the beat counts."""
    holder = this_process().model_copy(update=change)
    assert holder.alive(now=1010.0) == alive


def test_a_dead_holder_is_followed(store):
    dead = this_process().model_copy(update={"pid": 2**22 + 1, "born": "1", "beat": 0})
    store.put("runs/r1/engine.json", dead.model_dump_json().encode())
    with held(store, "r1") as holder:
        assert find_holder(store, "r1") == holder


def test_a_log_is_copied_in_parts_and_read_as_lines(store, tmp_path):
    path = tmp_path / "log"
    copy = LogCopy(store, "runs/r1/logs/a/0", path)
    reader = LogReader(store, "runs/r1/logs/a/0")
    copy.copy()
    assert list(reader.lines(last=False)) == []
    path.write_text("one\ntw")
    copy.copy()
    assert list(reader.lines(last=False)) == ["one"]
    path.write_text("one\ntwo\nthree")
    copy.copy()  # too early for another part
    assert list(reader.lines(last=False)) == []
    copy.ended = True
    copy.copy()
    assert copy.done
    assert list(reader.lines(last=True)) == ["two", "three"]
    assert [head.key for head in store.list("runs/r1/logs")] == [f"runs/r1/logs/a/0/part-0000{i}.log" for i in range(2)]


def test_much_output_does_not_wait(store, tmp_path):
    path = tmp_path / "log"
    copy = LogCopy(store, "runs/r1/logs/a/0", path)
    path.write_text("x\n")
    copy.copy()
    path.write_text("x\n" * EAGER_BYTES)
    copy.copy()
    copy.ended = True
    assert copy.done


class Guarded:
    """A store with one object that we may not read."""

    def __init__(self, store, key):
        self._store = store
        self._key = key

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, key):
        """As Store.get."""
        if key == self._key:
            raise UserError(f"get {key}: permission denied")
        return self._store.get(key)


class Shaky:
    """A store that fails while `broken`."""

    def __init__(self, store):
        self._store = store
        self.broken = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, key, data):
        """As Store.put."""
        if self.broken:
            raise TemporaryError(f"put {key}: away")
        return self._store.put(key, data)


def _recorded(store, tmp_path):
    workflow_ = parse_workflow(named("r1", workflow([task("a")])))
    state = new_state(workflow_, 1.0)
    info = RunInfo(run_id="r1", command=["test"], started=1.0)
    begin_record(store, info, workflow_.document, state)
    log = tmp_path / "log"
    log.write_text("line\n")
    return Recorder(store, state, this_process()), log


def test_what_a_broken_store_missed_is_written_later(store, tmp_path):
    shaky = Shaky(store)
    recorder, log = _recorded(shaky, tmp_path)
    shaky.broken = True
    recorder(NodeStarted(node="a", time=2.0, attempt=0, log=log))
    wait_until(lambda: recorder.problem, "the failure")
    assert load_run(store, "r1").state.nodes["a"].phase == Phase.PENDING
    shaky.broken = False
    recorder(
        NodeFinished(
            node="a", time=3.0, phase=Phase.SUCCEEDED, attempt=0, exit_code=0, message="", outputs={}, cache=""
        )
    )
    assert recorder.close()
    assert load_run(store, "r1").state.nodes["a"].phase == Phase.SUCCEEDED
    assert list(LogReader(store, "runs/r1/logs/a/0").lines(last=True)) == ["line"]


def test_a_store_that_stays_broken_is_told(store, tmp_path):
    shaky = Shaky(store)
    recorder, log = _recorded(shaky, tmp_path)
    shaky.broken = True
    recorder(NodeStarted(node="a", time=2.0, attempt=0, log=log))
    recorder(LogLine(node="a", time=2.0, attempt=0, line="line"))
    assert not recorder.close()
    assert "away" in recorder.problem


def test_outputs_of_earlier_steps_reach_later_ones_by_the_record(runs):
    tasks = [task("a", value="é"), task("b", value=out("a"), depends="a")]
    assert runs.run(named("r1", workflow(tasks)))[0] == 0
    assert json.loads(runs.command("status", "r1", "--json").stdout)["nodes"]["b"]["outputs"] == {"value": "é"}


def test_ctrl_c_while_following_leaves_the_run_alone(runs, tmp_path):
    process = runs.start(sleeping("r1", tmp_path / "mark"))
    wait_until(lambda: "pid" in runs.log("r1", "a"), "the step")
    follower = subprocess.Popen(
        [sys.executable, "-m", "pipelines.runs", "status", "r1", "--follow"],
        env=runs.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stderr
    assert "run r1" in follower.stderr.readline()
    follower.send_signal(signal.SIGINT)
    assert "run r1 goes on" in follower.communicate(timeout=60)[1]
    assert follower.returncode == 0
    assert process.poll() is None
    assert runs.command("cancel", "r1").returncode == 0
