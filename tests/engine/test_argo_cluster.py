"""What only a real cluster can show: runs that are left, come back to, cancelled and resumed; pods that die or wait.

Needs what tests.engine.argo needs; `make e2e` has it.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipelines.clusters import compute_cluster
from pipelines.engine.argo.server import ServerWorkflows
from pipelines.engine.argo.status import views
from pipelines.engine.events import LogLine, NodeWaits
from pipelines.engine.retry import retry_strategy
from pipelines.runs_store import load_run
from pipelines.settings.load import load_site
from steps.lib.kube.kinds import POD, Kind
from steps.lib.log_parts import LogReader
from steps.lib.store import Store, open_store
from tests.engine.argo import ArgoEngine, ArgoRun
from tests.engine.engines import wait_until
from tests.engine.workflows import Document, task, template, workflow

pytestmark = pytest.mark.skipif(not os.environ.get("TRIPOD_COMPUTE_KUBECONFIG"), reason="needs a cluster: make e2e")

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300
DRIVER = """
import json, sys, time
from pipelines.cli import guarded
from pipelines.clusters import open_workflows
from pipelines.engine.recorder import RunInfo
from pipelines.execute_argo import execute_on_argo
from pipelines.runs_commands import say_detached
from pipelines.settings.load import load_site
from pipelines.view import PlainView
from steps.lib.store import open_store
site = load_site("lab").value
document = json.load(open(sys.argv[2]))
name = document["metadata"]["name"]
info = RunInfo(run_id=name, command=["test"], site="lab", settings=site.model_dump(mode="json"), started=time.time())

def run():
    with open_workflows(site) as workflows:
        store = open_store(sys.argv[1])
        outcome = execute_on_argo(document, workflows=workflows, store=store, info=info, view=PlainView(verbose=True))
    return say_detached(name) if outcome is None else outcome.exit_code

sys.exit(guarded(run))
"""
SITE = 'engine = "argo"\n[store]\nuri = "{store}"\n[argo]\nnamespace = "{namespace}"\n'
SLOW = (
    "import sys, time\nprint('begun', flush=True)\n"
    "for i in range({seconds}):\n    print('line', i, flush=True); time.sleep(1)\nsys.exit(int(sys.argv[1]))"
)


class Person:
    """Submits a document, leaves it, and uses `python -m pipelines.runs`."""

    def __init__(self, engine: ArgoEngine, folder: Path, document: Document):
        self.document = engine.dressed(document)
        self.run = self.document["metadata"]["name"]
        self.store: Store = open_store(f"file://{folder}/store")
        (folder / "document.json").write_text(json.dumps(self.document))
        namespace = load_site("lab").value.argo.namespace
        (folder / "here.toml").write_text(SITE.format(store=self.store.uri, namespace=namespace))
        self.folder = folder
        self.env = os.environ | {"PYTHONPATH": str(ROOT)}

    def submit(self) -> subprocess.Popen[str]:
        """Submit and follow, in a process of its own."""
        argv = [sys.executable, "-c", DRIVER, self.store.uri, str(self.folder / "document.json")]
        return subprocess.Popen(argv, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def runs(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """`python -m pipelines.runs ...`"""
        command = [sys.executable, "-m", "pipelines.runs", *argv, "--site", str(self.folder / "here.toml")]
        return subprocess.run(
            command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )

    def log(self, node: str, attempt: int = 0) -> list[str]:
        """What the store has of an attempt's log."""
        return list(LogReader(self.store, f"runs/{self.run}/logs/{node}/{attempt}", shared=True).lines(last=True))

    def leave_when(self, line: str) -> str:
        """Submit, press Ctrl-C when the view says `line`. Returns all that it said."""
        process, said = self.submit(), ""
        assert process.stderr
        for text in process.stderr:
            said += text
            if line in text:
                process.send_signal(signal.SIGINT)
                break
        said += process.communicate(timeout=DEADLINE_S)[1]
        assert process.returncode == 0, said
        return said


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ArgoEngine]:
    argo = ArgoEngine(tmp_path / "scratch")
    yield argo
    argo.close()


def slow(seconds: int, code: int) -> Document:
    """a takes its time, b ends with a code."""
    return workflow(
        [task("a", "slow", value="0"), task("b", "end", value=str(code), depends="a")],
        [
            template("slow", SLOW.format(seconds=seconds), default=""),
            template("end", SLOW.format(seconds=1), default=""),
        ],
    )


def test_a_run_that_is_left_goes_on_and_is_come_back_to(engine, tmp_path):
    person = Person(engine, tmp_path, slow(20, 3))
    said = person.leave_when("a | line 2")
    assert f"run {person.run} goes on; `python -m pipelines.runs cancel {person.run}` stops it" in said
    assert f"next: python -m pipelines.runs status {person.run} --follow" in said
    looked = person.runs("status", person.run)
    assert f"{person.run}  Running" in looked.stdout
    back = person.runs("status", person.run, "--follow")
    assert back.returncode == 3, back.stderr
    assert f"run {person.run} failed" in back.stderr
    assert person.log("a") == ["begun", *(f"line {i}" for i in range(20))]  # each once, whoever has followed
    assert person.log("b") == ["begun", "line 0"]
    listed = person.runs("list")
    assert any(line.split()[:2] == [person.run, "Failed"] for line in listed.stdout.splitlines())


def test_cancel_then_resume_under_one_record(engine, tmp_path):
    person = Person(engine, tmp_path, slow(30, 0))
    person.leave_when("a | line 2")
    cancelled = person.runs("cancel", person.run)
    assert cancelled.returncode == 0, cancelled.stderr
    assert "ended" in cancelled.stderr
    state = load_run(person.store, person.run).state
    assert (state.phase, state.exit_code, state.message) == ("Failed", 130, "cancelled")
    assert state.nodes["a"].phase == "Failed"
    assert state.nodes["b"].phase in ("Pending", "Omitted")
    resumed = person.runs("resume", person.run)
    assert resumed.returncode == 0, resumed.stderr
    assert load_run(person.store, person.run).state.phase == "Succeeded"
    assert person.log("a", 0)[:3] == ["begun", "line 0", "line 1"]
    assert person.log("a", 1) == ["begun", *(f"line {i}" for i in range(30))]


def test_a_pod_that_is_deleted_runs_again(engine):
    """Argo 4.0.7 makes it anew within the same attempt."""
    code = "import time; print('here', flush=True); time.sleep(15)"
    document = workflow([task("a", "wait")], [template("wait", code, default="x", retryStrategy=retry_strategy(2, 0))])
    run = engine.start(document)
    run.wait_for_line("a", "here")
    site = load_site("lab").value
    with compute_cluster(site) as cluster:
        (attempt,) = views(run.workflow())[0].attempts
        assert cluster.delete(POD, site.argo.namespace, attempt.pod)
    result = run.result()
    assert result.exit_code == 0
    assert [event.line for event in run.events if isinstance(event, LogLine)].count("here") == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"nodeSelector": {"tripod/none": "x"}}, "Unschedulable: 0/"),
        ({"image": "sha256:" + "0" * 64}, "Pull"),
        ({"volumes": [{"name": "outputs", "configMap": {"name": "tripod-none"}}]}, 'configmap "tripod-none" not found'),
    ],
    ids=["fits nowhere", "no image", "no config map"],
)
def test_a_pod_that_cannot_start_says_why(engine, change, why):
    document = engine.dressed(workflow([task("a")]))
    for container in (t["container"] for t in document["spec"]["templates"] if "container" in t):
        if digest := change.get("image"):
            container["image"] = container["image"].partition("@")[0] + "@" + digest
    document["spec"] |= {key: value for key, value in change.items() if key != "image"}
    run = engine.start_dressed(document)
    reasons: list[str] = []

    def told() -> bool:
        reasons[:] = [event.reason for event in run.events if isinstance(event, NodeWaits)]
        return any(why in reason for reason in reasons)

    wait_until(told, f"a reason with {why!r}; told: {reasons}", 120)
    run.cancel()
    assert run.result().exit_code == 130


def test_a_workflow_that_argo_refuses_is_wrong_settings(engine):
    document = engine.dressed(workflow([task("a")]))
    document["spec"]["templates"][0]["dag"]["tasks"][0]["depends"] = "nobody"
    result = ArgoRun(engine.workflows, document, engine.scratch, as_is=workflow([task("a")])).result()
    assert result.exit_code == 2
    assert "nobody" in result.message


def test_an_argo_server_does_as_the_kubernetes_api(engine, tmp_path):
    with _argo_server(tmp_path) as (url, ca, token):
        workflows = ServerWorkflows(url, namespace=load_site("lab").value.argo.namespace, token=token, ca_bundle=ca)
        failing = workflow([task("a"), task("b", "fail", value="3", depends="a")], [_fail()])
        run = ArgoRun(workflows, engine.dressed(failing), tmp_path / "run")
        result = run.result()
        assert (result.phase, result.exit_code) == ("Failed", 3)
        assert result.message == "b: it went wrong"
        assert result.value("a") == "x"
        assert sorted(result.logs["b"].splitlines()) == ["error: it went wrong", "some work"]  # of two pipes
        assert run.name in [there["metadata"]["name"] for there in workflows.list()]
        sleeping = ArgoRun(workflows, engine.dressed(slow(600, 0)), tmp_path / "sleeping")
        sleeping.wait_for_line("a", "line 1")
        sleeping.cancel()
        assert sleeping.result().exit_code == 130
        workflows.close()


def _fail() -> Document:
    from tests.engine.workflows import FAIL

    return template("fail", FAIL)


@contextmanager
def _argo_server(folder: Path) -> Iterator[tuple[str, str, str]]:
    """URL, CA file and token of the cluster's own Argo server, whose certificate is for localhost: through a relay."""
    site = load_site("lab").value
    account = "tripod-test-person"
    binding = Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
    accounts = Kind("v1", "ServiceAccount", "serviceaccounts")
    tokens = Kind("v1", "TokenRequest", f"serviceaccounts/{account}/token")
    meta = {"name": account, "namespace": site.argo.namespace}
    with compute_cluster(site) as cluster:
        found = cluster.list(POD, "argo", labels={"app": "argo-server"})
        if not found:
            pytest.skip("no Argo server in the namespace argo")
        address = (found[0]["status"]["podIP"], 2746)
        subject = {"kind": "ServiceAccount", "name": account, "namespace": site.argo.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tripod-submitter"}
        for kind, more in ((accounts, {}), (binding, {"roleRef": role, "subjects": [subject]})):
            if cluster.get(kind, site.argo.namespace, account) is None:
                cluster.create(kind, {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **more})
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": meta, "spec": {}}
        token = cluster.create(tokens, asked)["status"]["token"]
        ca = folder / "argo-server.crt"
        ca.write_text(ssl.get_server_certificate(address))
        with _relay(address) as port:
            yield f"https://localhost:{port}", str(ca), token
        cluster.delete(binding, site.argo.namespace, account)
        cluster.delete(accounts, site.argo.namespace, account)


@contextmanager
def _relay(address: tuple[str, int]) -> Iterator[int]:
    """A port on localhost whose connections go to `address`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for end in (source, target):
                end.close()

    def accept() -> None:
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return
            there = socket.create_connection(address, timeout=30)
            there.settimeout(None)
            for pair in ((here, there), (there, here)):
                threading.Thread(target=copy, args=pair, daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)
