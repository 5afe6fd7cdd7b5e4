"""What only the local engine can be asked: its processes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from pipelines.engine import local
from pipelines.engine.events import Event, LogLine
from pipelines.engine.local import SAME_WISH_S
from pipelines.engine.workflow import parse_workflow
from tests.engine.engines import LocalEngine, is_alive, wait_until
from tests.engine.workflows import ALL, out, task, template, workflow

WITH_PARENT = (
    "import ctypes, os, signal, time; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "
    "assert os.getppid() == int(os.environ['TRIPOD_PARENT']); print('pid', os.getpid(), flush=True); "
)
"""What steps.runner does so that a step ends with its engine, and tells its process id."""


def pids(line: str) -> list[int]:
    """The process ids in a line."""
    return [int(word) for word in line.split() if word.isdecimal()]


def test_cancel_leaves_no_process(engine):
    run = engine.start(ALL["sleepers"]())
    step, child = pids(run.wait_for_line("a", "pids"))
    assert is_alive(step)
    assert is_alive(child)
    run.cancel()
    assert run.result().exit_code == 130
    assert not is_alive(step)
    assert not is_alive(child)


def test_a_step_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path):
    engine = LocalEngine(tmp_path, grace_s=1)
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print('pid', os.getpid(), flush=True); time.sleep(600)"
    run = engine.start(workflow([task("a", "stubborn")], [template("stubborn", code)]))
    [pid] = pids(run.wait_for_line("a", "pid"))
    run.cancel()
    result = run.result()
    assert result.exit_code == 130
    assert result.nodes["a"]["exit_code"] == 128 + signal.SIGKILL
    assert 1 <= result.wall_s < 30
    assert not is_alive(pid)


def test_a_second_cancel_kills_at_once(tmp_path):
    engine = LocalEngine(tmp_path, grace_s=600)
    code = (
        "import os, signal, time; signal.signal(15, lambda *_: print('asked', flush=True)); "
        "print('pid', os.getpid(), flush=True)\nwhile True: time.sleep(600)"
    )
    run = engine.start(workflow([task("a", "stubborn")], [template("stubborn", code)]))
    [pid] = pids(run.wait_for_line("a", "pid"))
    run.cancel()
    run.wait_for_line("a", "asked")
    run.process.send_signal(signal.SIGINT)  # at once: the same wish again, as from `timeout`
    time.sleep(1.5 * SAME_WISH_S)
    assert is_alive(pid)
    run.process.send_signal(signal.SIGINT)
    assert run.result().exit_code == 130
    assert not is_alive(pid)


def test_the_grace_time_of_a_deadline_does_not_reach_the_exit_handler(tmp_path):
    engine = LocalEngine(tmp_path, grace_s=1)
    document = workflow(
        [task("a", "sleep")],
        [
            template("sleep", "import time; time.sleep(600)"),
            template("bye", "import time; time.sleep(2)", in_default="x", default=""),
        ],
        activeDeadlineSeconds=1,
        onExit="bye",
    )
    result = engine.run(document)
    assert result.nodes["a"]["exit_code"] == 128 + signal.SIGTERM
    assert (result.nodes["onExit"]["phase"], result.nodes["onExit"]["exit_code"]) == ("Succeeded", 0)


def test_a_cancelled_step_may_save_and_say_so(engine):
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(76)); print('ready', flush=True); time.sleep(600)"
    run = engine.start(workflow([task("a", "saver")], [template("saver", code)]))
    run.wait_for_line("a", "ready")
    run.cancel()
    result = run.result()
    assert result.exit_code == 130
    assert result.nodes["a"]["exit_code"] == 76


def test_steps_end_when_the_engine_is_killed(engine):
    run = engine.start(workflow([task("a", "long")], [template("long", WITH_PARENT + "time.sleep(600)")]))
    [pid] = pids(run.wait_for_line("a", "pid"))
    run.process.kill()
    run.process.wait()
    wait_until(lambda: not is_alive(pid), "the end of the step")


def test_a_step_outlives_its_neighbours(engine):
    """The kernel takes the death of the thread that started a process for that of its parent."""
    long = template("long", WITH_PARENT + "time.sleep(2)", default="")
    result = engine.run(workflow([task("a"), task("b", depends="a"), task("c", "long")], [long]))
    assert result.phases() == {"a": "Succeeded", "b": "Succeeded", "c": "Succeeded"}


def test_what_a_step_leaves_behind_is_killed(engine):
    code = (
        "import subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); print('pid', child.pid)"
    )
    result = engine.run(workflow([task("a", "leaver")], [template("leaver", code, default="")]))
    assert result.phase == "Succeeded"
    [child] = pids(result.logs["a"])
    wait_until(lambda: not is_alive(child), "the end of the child")


def test_a_server_in_a_session_of_its_own_stays_and_holds_nobody_up(engine):
    code = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); print('pid', child.pid)"
    )
    result = engine.run(workflow([task("a", "server")], [template("server", code, default="")]))
    [child] = pids(result.logs["a"])
    try:
        assert result.phase == "Succeeded"
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_each_attempt_has_its_own_outputs(engine):
    """Items of a fan-out and attempts share the path in the workflow; here nothing is shared."""
    code = (
        "import os, pathlib; folder = pathlib.Path(os.environ['TRIPOD_OUTPUTS']); assert not list(folder.iterdir()); "
        "(folder / 'value').write_text(str(folder))"
    )
    result = engine.run(workflow([task("a", "where", withItems=[1, 2, 3])], [template("where", code)]))
    assert len({result.value(f"a.{i}") for i in range(3)}) == 3


def test_steps_cannot_read_the_terminal(engine):
    code = "import sys; print('read', repr(sys.stdin.read()))"
    result = engine.run(workflow([task("a", "reader")], [template("reader", code, default="")]))
    assert result.logs["a"] == "read ''\n"


def test_a_long_log_does_not_block(engine):
    code = "import sys\nfor i in range(200_000): print('line', i)"
    result = engine.run(workflow([task("a", "talker")], [template("talker", code, default="")]))
    assert result.phase == "Succeeded"
    assert result.logs["a"].splitlines()[-1] == "line 199999"


def test_a_nul_does_not_reach_the_log(engine):
    code = "import sys; sys.stdout.buffer.write(b'a\\0b\\n')"
    assert engine.run(workflow([task("a", "nul")], [template("nul", code, default="")])).logs["a"] == "a\\0b\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": ["no-such-command"]}, "no-such-command: cannot be started: No such file or directory"),
        ({"args": ["a\0b"]}, "cannot be started: embedded null byte"),
        ({"args": ["x" * 200_000]}, "cannot be started: Argument list too long"),
    ],
)
def test_a_command_that_cannot_be_started(engine, change, said):
    kind = template("broken", "")
    kind["container"] |= change
    result = engine.run(workflow([task("a", "broken")], [kind]))
    assert result.exit_code == 2
    assert said in result.message


def test_an_output_that_is_no_text(engine):
    code = "import os, pathlib; pathlib.Path(os.environ['TRIPOD_OUTPUTS'], 'value').write_bytes(b'\\xff')"
    result = engine.run(workflow([task("a", "bytes")], [template("bytes", code)]))
    assert result.nodes["a"]["phase"] == "Error"
    assert "'value'" in result.message


def test_the_python_of_the_engine_runs_the_steps(engine):
    code = "import os, pathlib, sys; pathlib.Path(os.environ['TRIPOD_OUTPUTS'], 'value').write_text(sys.executable)"
    import sys

    assert Path(engine.run(workflow([task("a", "who")], [template("who", code)])).value("a")) == Path(sys.executable)


@pytest.mark.parametrize(
    "tasks",
    [
        [task("a", "unhex", value=f"x{b'{{workflow.name}}'.hex()}"), task("b", value=out("a"), depends="a")],
        [
            task("a", "unhex", value=f"x{json.dumps(['{{=1}}']).encode().hex()}"),
            task("b", value="{{item}}", depends="a", withParam=out("a")),
        ],
    ],
    ids=["output", "item"],
)
def test_a_value_that_argo_would_take_for_a_reference_is_refused(engine, tasks):
    unhex = ALL["values_of_outputs"]()["spec"]["templates"][-1]
    result = engine.run(workflow(tasks, [unhex]))
    assert result.phases()["a"] == "Succeeded"
    assert result.phases()["b"] == "Error"
    assert "which Argo would take for a reference" in result.message


def test_little_time_goes_by_between_steps(engine):
    result = engine.run(ALL["chain"]())
    steps_s = sum(node["wall_s"] for node in result.nodes.values())
    assert result.phase == "Succeeded"
    assert (result.wall_s - steps_s) / len(result.nodes) <= 0.05


def test_a_listener_that_fails_ends_the_run_and_blocks_no_step(tmp_path):
    """What it raises comes out of `run`, and the step is gone; it had more to say than a pipe holds."""
    code = "import os; print('pid', os.getpid(), flush=True); print('x' * 99 + '\\n' * 20_000, flush=True); import time; time.sleep(600)"
    seen: list[str] = []

    def fail(event: Event) -> None:
        if isinstance(event, LogLine):
            seen.append(event.line)
            raise RuntimeError("no room")

    document = parse_workflow(workflow([task("a", "loud")], [template("loud", code)]))
    with pytest.raises(RuntimeError, match="no room"):
        local.LocalEngine(document, scratch=tmp_path, listeners=[fail]).run()
    [pid] = pids(seen[0])
    assert not is_alive(pid)
