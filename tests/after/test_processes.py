"""Servers and the processes around them: who ends with whom. Real processes, no vLLM."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import deploy as command
from steps.lib import guard, pointer
from steps.lib.process import started
from steps.lib.serving import Serving
from steps.lib.wait import wait
from tests.after.serving import Place, params, publish_model

ROOT = Path(__file__).resolve().parents[2]


def start_step(place: Place, **changes: object) -> subprocess.Popen[str]:
    """`python -m steps deploy` as the engine starts it."""
    fields = params("models/m/v1", **changes).model_dump(mode="json")
    words = [f"--{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in fields.items()]
    env = {**os.environ, **place.env}
    return subprocess.Popen(
        [sys.executable, "-m", "steps", "deploy", *words], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def pid_in(path: Path) -> int:
    """Waits until the stub has written its child's pid."""
    wait(path.exists, what="the child is there", timeout_s=30)
    return int(path.read_text())


def gone(pid: int) -> None:
    wait(lambda: started(pid) == "", what=f"process {pid} ends", timeout_s=20)


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_with_the_step(store, tmp_path, signum):
    place = Place(store, tmp_path)
    place.stub(mode="silent", child=tmp_path / "child")
    publish_model(store)
    step = start_step(place, keep=True)
    child = pid_in(tmp_path / "child")
    step.send_signal(signum)
    step.communicate(timeout=30)
    assert step.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 128 + 15, signal.SIGINT: 130}[signum]
    gone(child)
    assert Serving(place.env, store.uri).all() == ([], [])


def test_a_kept_server_outlives_the_step_until_it_is_stopped(store, tmp_path, monkeypatch, capsys):
    place = Place(store, tmp_path)
    place.stub(child=tmp_path / "child")
    publish_model(store)
    step = start_step(place, keep=True)
    assert step.wait(timeout=30) == 0
    step.stdout.close()
    child = pid_in(tmp_path / "child")
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    assert command.main(["status"]) == 0
    assert "m  http://127.0.0.1:" in (shown := capsys.readouterr().out)
    assert "healthy" in shown
    assert command.main(["stop", "m"]) == 0
    gone(child)
    assert command.main(["stop", "m"]) == 2
    assert "which does not serve on this machine" in capsys.readouterr().err
    assert command.main(["status", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_state_file_that_cannot_be_read_is_named_by_status(store, tmp_path, monkeypatch, capsys):
    place = Place(store, tmp_path)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    files = Serving(place.env, store.uri).new_folder("m").parent
    state = files.with_name(f"{files.name}.json")
    state.write_bytes(b"[{")
    assert command.main(["status"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"warning: {state}: unreadable")
    assert command.main(["stop", "m"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {state}: unreadable")


@pytest.fixture
def here(store, tmp_path, monkeypatch):
    """This process is at a place with the stub, the store, and a registered model of the recipe `tiny`."""
    place = Place(store, tmp_path)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRIPOD_SITE", "local")
    pointer.move(store, "models/tiny/aliases/champion", publish_model(store, name="tiny"))
    before = signal.getsignal(signal.SIGTERM)
    yield place
    signal.signal(signal.SIGTERM, before)  # the step's own handler
    serving = Serving(place.env, store.uri)
    for endpoint in serving.all()[0]:
        serving.end(endpoint)


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_registered_model_is_served_by_its_recipe(here, capsys):
    ask = ["run", "--model", "tiny", "--set", "serving.prompt=import"]
    assert command.main([*ask, "--no-keep"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["completion"] == " after 'import'"
    assert "it stays" not in said.err
    assert Serving(here.env, here.store.uri).all() == ([], [])
    assert command.main(ask) == 0
    said = capsys.readouterr()
    assert "it stays; `python -m pipelines.deploy stop tiny` ends it" in said.err
    (serves,) = Serving(here.env, here.store.uri).all()[0]
    assert json.loads(said.out)["endpoint"] == serves.url


def test_a_version_that_is_not_registered_is_refused(here, capsys):
    assert command.main(["run", "--model", "tiny", "--version", "v9"]) == 2
    assert "model tiny: none is registered" in capsys.readouterr().err, "it has an alias, but no lineage"
    here.store.put("models/tiny/lineage/v1.json", b"{}")
    assert command.main(["run", "--model", "tiny", "--version", "v9"]) == 2
    assert "model tiny: 'v9': no such version or alias; versions are v1" in capsys.readouterr().err
    assert here.num_starts == 0


def test_help_pulls_in_nothing_heavy():
    code = (
        "import sys, pipelines.deploy; print([m for m in ('hera', 'boto3', 'pydantic', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True) == "[]\n"


def run_guard(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", guard.__file__, *words], stdin=subprocess.PIPE, start_new_session=True
    )


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_guard_ends_as_its_command_ends(code, expected):
    with run_guard(sys.executable, "-c", code) as process:
        assert process.wait(timeout=30) == expected


def test_the_command_ends_with_a_guard_that_is_killed(tmp_path):
    """As by the system, short of memory: a server that nothing names any more would stay for ever."""
    code = f"import os, time; open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid())); "
    code += f"os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r}); time.sleep(60)"
    with run_guard(sys.executable, "-c", code) as process:
        command = pid_in(tmp_path / "pid")
        process.kill()
        gone(command)


def test_the_guard_ends_children_that_ignore_sigterm(tmp_path):
    """A grandchild of the guard that is deaf to SIGTERM, after the command itself has ended."""
    deaf = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w').write('x'); time.sleep(600)"
    code = (
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {deaf!r}, sys.argv[1] + '.ready'])\n"
        "while not os.path.exists(sys.argv[1] + '.ready'): time.sleep(0.01)\n"
        "open(sys.argv[1] + '.tmp', 'w').write(str(child.pid))\n"
        "os.rename(sys.argv[1] + '.tmp', sys.argv[1])\n"
    )
    quick = Path(guard.__file__).read_text().replace("GRACE_S = 10.0", "GRACE_S = 0.3")
    (tmp_path / "guard.py").write_text(quick)
    words = [sys.executable, "-I", str(tmp_path / "guard.py"), sys.executable, "-c", code, str(tmp_path / "child")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True) as process:
        child = pid_in(tmp_path / "child")
        assert process.wait(timeout=30) == 0
        gone(child)
