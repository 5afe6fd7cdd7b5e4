"""`python -m steps NAME` as the engines see it: argv and environment in; stdout, files and exit code out."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steps.lib.errors import Exit, is_retryable

REPOSITORY = Path(__file__).parents[2]
FAKE = '''
"""A step for tests."""
import errno
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Literal
from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step

class Params(BaseParams):
    text: str = "t"
    number: int = 1
    share: float = 0.5
    names: tuple[str, ...] = ()
    mode: Literal["fast", "slow"] = "fast"
    do: str = "return"

class Result(BaseResult):
    text: str
    number: int
    names: tuple[str, ...]
    flag: bool
    where: FolderRef

EXAMPLE = Params()
step = Step(image="data", timeout=timedelta(minutes=1), cached=CACHED)

def run(params: Params, ctx: Context) -> Result:
    from steps.lib import errors, folder
    marks = ctx.env.get("MARKS", "")
    if marks:
        open(marks, "a").write(ctx.run_id + "\\\\n")
    if params.do == "wait":
        print("begun", file=sys.stderr, flush=True)
        (ctx.scratch / "big").write_text("x")
        time.sleep(60)
    elif params.do == "full":
        raise OSError(errno.ENOSPC, "No space left on device", "/data/part-7")
    elif params.do == "full, nameless":
        raise OSError(errno.ENOSPC, "No space left on device")
    elif params.do == "library":
        import no_such_library
    elif params.do == "own module":
        import steps.lib.no_such_module
    elif params.do == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"x")
    elif params.do == "bug":
        assert params.number == 2, "expected two\\\\nlines"
    elif params.do == "noise":
        print("noise on stdout")
    elif params.do.startswith("raise "):
        raise getattr(errors, params.do[6:])("what\\\\nhappened")
    prefix = f"out/{ctx.key[:8]}"
    ctx.say("it lives")
    folder.publish(ctx.store, prefix, kind="docs", content={"a": b"1"})
    return Result(text=params.text, number=params.number, names=params.names, flag=True, where=prefix)
'''


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the steps package with two steps of our own in it."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("__init__", "__main__", "contract", "records", "runner"):
        (root / "steps").mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / f"steps/{name}.py", root / "steps")
    shutil.copytree(REPOSITORY / "steps/lib", root / "steps/lib", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "steps/fake.py").write_text(FAKE.replace("CACHED", "True").replace("\\\\", "\\"))
    (root / "steps/live.py").write_text(FAKE.replace("CACHED", "False").replace("\\\\", "\\"))
    return root


class Place:
    """Somewhere to run steps."""

    def __init__(self, tree: Path, tmp: Path):
        self.tree, self.outputs, self.scratch, self.marks = tree, tmp / "outputs", tmp / "scratch", tmp / "marks"
        self.scratch.mkdir()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRIPOD_")},
            "TRIPOD_STORE": f"file://{tmp}/store",
            "TRIPOD_OUTPUTS": str(self.outputs),
            "TRIPOD_SCRATCH": str(self.scratch),
            "TRIPOD_RUN_ID": "run-1",
            "MARKS": str(self.marks),
        }

    def start(self, *argv: str, **env: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "steps", *argv]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=self.tree, env={**self.env, **env}, **pipes)  # type: ignore[call-overload,no-any-return]

    def run(self, *argv: str, **env: str) -> tuple[int, str, str]:
        process = self.start(*argv, **env)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def fails(self, *argv: str, **env: str) -> tuple[int, str]:
        """Exit code and the one line."""
        code, out, err = self.run(*argv, **env)
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("error: ")
        return code, err.removeprefix("error: ").strip()

    def calls(self) -> int:
        """How often run() ran."""
        return len(self.marks.read_text().splitlines()) if self.marks.exists() else 0


@pytest.fixture
def place(tree: Path, tmp_path: Path) -> Place:
    return Place(tree, tmp_path)


# ---- result and outputs --------------------------------------------------------------------------


def test_the_result_is_the_last_line(place: Place) -> None:
    code, out, _ = place.run("fake", "--do=noise", "--number=7", '--names=["a","b"]')
    assert code == 0
    assert out.splitlines()[0] == "noise on stdout"
    result = json.loads(out.splitlines()[-1])
    assert (result["text"], result["number"], result["names"], result["flag"]) == ("t", 7, ["a", "b"], True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " padded ",
        "ä€😀\u202e",
        "two\nlines\n",
        "\"quoted\" 'both' \\back",
        "{{tasks.x}} {0} $HOME %s",
        "--text=1",
        "=",
        "1",
    ],
)
def test_strings_arrive_byte_for_byte(place: Place, text: str) -> None:
    code, out, _ = place.run("fake", f"--text={text}")
    assert code == 0
    assert json.loads(out)["text"] == text
    assert (place.outputs / "text").read_bytes() == text.encode()


def test_other_fields_are_json_files(place: Place) -> None:
    place.run("fake", "--number=12", '--names=["a b","ä"]')
    files = {path.name: path.read_bytes() for path in place.outputs.iterdir()}
    where = files.pop("where")
    assert files == {
        "text": b"t",
        "number": b"12",
        "names": b'["a b","\\u00e4"]',
        "flag": b"true",
        "_cache": b"miss: never run before",
    }
    assert where.startswith(b"out/")


def test_a_second_call_takes_the_record(place: Place) -> None:
    first = place.run("fake")
    second = place.run("fake", TRIPOD_RUN_ID="run-2")
    assert first[:2] == second[:2]
    assert place.calls() == 1
    assert (place.outputs / "_cache").read_text() == "hit: recorded by run-1"
    place.run("fake", "--number=2")
    assert (place.outputs / "_cache").read_text() == "miss: changed: number 1 -> 2"
    assert place.calls() == 2


def test_a_record_whose_content_is_gone_does_not_count(place: Place) -> None:
    _, out, _ = place.run("fake")
    prefix = json.loads(out)["where"]
    shutil.rmtree(Path(place.env["TRIPOD_STORE"].removeprefix("file://")) / prefix)
    assert place.run("fake")[1] == out
    assert place.calls() == 2
    assert (place.outputs / "_cache").read_text().startswith(f"miss: {prefix}: no such folder")


def test_a_live_step_runs_each_time(place: Place) -> None:
    place.run("live")
    place.run("live")
    assert place.calls() == 2
    assert (place.outputs / "_cache").read_text() == "live: it lives"


def test_scratch_is_gone_afterwards(place: Place) -> None:
    for do in ("return", "bug", "raise UserError"):
        place.run("fake", f"--do={do}")
        assert list(place.scratch.iterdir()) == []


def test_a_trivial_step_costs_little_more_than_pydantic(place: Place) -> None:
    bare = "from pydantic import BaseModel\nclass A(BaseModel):\n    x: int"
    place.env["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    place.run("fake")
    ours, base = [], []
    for _ in range(5):  # interleaved, CPU seconds: others may be busy on this machine
        ours.append(_cpu_s([sys.executable, "-m", "steps", "fake"], place))
        base.append(_cpu_s([sys.executable, "-c", bare], place))
    assert min(ours) < 1.6 * min(base)


def _cpu_s(command: list[str], place: Place) -> float:
    before = os.times()
    subprocess.run(command, cwd=place.tree, env=place.env, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


# ---- arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["nothing"], "step: got 'nothing', allowed are fake, live"),
        (["fake", "number=1"], "step fake: got 'number=1', allowed are --text=..., --number=..."),
        (["fake", "--other=1"], "step fake: got '--other=1', allowed are --text="),
        (["fake", "--number"], "step fake: got '--number', allowed are"),
        (["fake", "--number=1", "--number=1"], "step fake: --number is given twice"),
        (["fake", "--number=one"], "step fake: --number takes JSON, got 'one'"),
        (["fake", "--number=1.5"], "step fake: number: "),
        (["fake", "--share=NaN"], "step fake: share: "),
        (["fake", "--names=[1]"], "step fake: names.0: Input should be a valid string, got 1"),
        (["fake", "--mode=quick"], "step fake: mode: Input should be 'fast' or 'slow', got 'quick'"),
    ],
)
def test_wrong_arguments(place: Place, argv: list[str], says: str) -> None:
    code, line = place.fails(*argv)
    assert code == Exit.USER
    assert line.startswith(says)
    assert place.calls() == 0


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"TRIPOD_STORE": "/plain"}, "store: got '/plain', allowed are file:///absolute/folder and s3://bucket/prefix"),
        ({"TRIPOD_WORKERS": "0"}, "TRIPOD_WORKERS: got '0', allowed is a whole number from 1"),
        ({"TRIPOD_WORKERS": "two"}, "TRIPOD_WORKERS: got 'two'"),
    ],
)
def test_wrong_environment(place: Place, env: dict[str, str], says: str) -> None:
    code, line = place.fails("fake", **env)
    assert code == Exit.USER
    assert line.startswith(says)


def test_no_store(place: Place) -> None:
    del place.env["TRIPOD_STORE"]
    assert place.fails("fake") == (2, "TRIPOD_STORE: not set, allowed are file:///folder and s3://bucket/prefix")


def test_help(place: Place) -> None:
    code, out, err = place.run("--help")
    assert (code, err) == (0, "")
    assert "steps: fake, live" in out
    code, out, _ = place.run("fake", "--help")
    assert code == 0
    assert "--number=...  int, default 1" in out
    assert place.run()[0] == Exit.USER


# ---- exit codes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("UserError", 2),
        ("RejectedError", 3),
        ("TemporaryError", 75),
        ("PreemptedError", 76),
        ("CancelledError", 130),
        ("TripodError", 1),
    ],
)
def test_each_kind_has_its_code_and_one_line(place: Place, error: str, code: int) -> None:
    assert place.fails("fake", f"--do=raise {error}") == (code, "what happened")
    assert not list(place.outputs.glob("*"))


def test_a_bug_shows_the_traceback_and_then_one_line(place: Place) -> None:
    for do, name in (("bug", "AssertionError"), ("own module", "ModuleNotFoundError"), ("pipe", "BrokenPipeError")):
        code, out, err = place.run("fake", f"--do={do}")
        assert (code, out) == (Exit.BUG, "")
        assert f"{name}: " in err
        assert err.splitlines()[-1] == "error: this is a bug in tripod; please report it with the traceback above"


def test_a_reader_of_stdout_that_leaves_is_no_failure(place: Place) -> None:
    process = place.start("fake", "--do=wait for the reader")
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err


@pytest.mark.skipif(sys.platform != "linux", reason="uses /dev/full")
def test_a_full_disk_below_stderr_changes_nothing(place: Place) -> None:
    """As with `nohup ... 2> log`: what is said is lost, the work and its exit code are not."""
    for do, code, said in (("ok", 0, 1), ("full", 75, 0)):
        with open("/dev/full", "w") as full:
            argv = [sys.executable, "-m", "steps", "fake", f"--do={do}"]
            done = subprocess.run(argv, cwd=place.tree, env=place.env, stdout=subprocess.PIPE, stderr=full)
        assert (done.returncode, done.stdout.count(b"\n")) == (code, said)


def test_what_the_system_says(place: Place) -> None:
    next_command = "no space left; free some, then run the same command again"
    assert place.fails("fake", "--do=full") == (75, f"/data/part-7: {next_command}")
    code, line = place.fails("fake", "--do=full, nameless")
    assert code == Exit.TEMPORARY
    assert re.fullmatch(rf"{place.scratch}/tripod-\w+: {next_command}", line), "what libraries do not name is in there"
    assert place.fails("fake", "--do=library") == (2, "library no_such_library: not installed here; run `make setup`")
    code, line = place.fails("fake", TRIPOD_SCRATCH="/no/such/folder")
    assert code == Exit.USER
    assert "/no/such/folder" in line
    assert "No such file or directory" in line


@pytest.mark.parametrize(
    ("number", "code", "line"),
    [(signal.SIGTERM, 143, "error: ended by SIGTERM\n"), (signal.SIGINT, 130, "error: cancelled\n")],
)
def test_signals(place: Place, number: signal.Signals, code: int, line: str) -> None:
    process = place.start("fake", "--do=wait")
    assert process.stderr
    assert process.stderr.readline() == "begun\n"
    started = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - started < 20
    assert (process.returncode, out, err) == (code, "", line)
    assert list(place.scratch.iterdir()) == []
    assert not list(place.outputs.glob("*"))


@pytest.mark.parametrize("command", ["steps", "pipelines.train"])
def test_ctrl_c_while_modules_load(command: str, tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    argv = [sys.executable, "-m", command, "ingest" if command == "steps" else "--model=tiny"]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: cancelled\n")


def test_it_ends_with_its_parent(place: Place) -> None:
    program = (
        "import os, subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-m', 'steps', 'fake', '--do=wait'], stderr=subprocess.PIPE, "
        "text=True, env={**os.environ, 'TRIPOD_PARENT': str(os.getpid())}); "
        "child.stderr.readline(); print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", program], cwd=place.tree, env=place.env, capture_output=True, text=True
    )
    child = int(parent.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and "\nState:\tZ" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (2, False), (3, False), (75, True), (76, True)])
def test_what_may_be_tried_again(code: int, again: bool) -> None:
    assert is_retryable(code) is again


def test_death_by_signal_may_be_tried_again_and_cancelling_not() -> None:
    assert [is_retryable(code) for code in (137, 143, 139, -9, -15)] == [True] * 5
    assert [is_retryable(code) for code in (130, -2)] == [False, False]


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-"])
def test_a_stream_that_is_closed_from_the_start_changes_nothing(place: Place, closed: str) -> None:
    """As some supervisors start what they run."""
    words = [sys.executable, "-m", "steps", "fake", "--do=ok"]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *words], cwd=place.tree, env=place.env)
    assert done.returncode == 0
    assert list(place.outputs.glob("*"))
