"""The client for API servers, against a double that loses replies, stays away and refuses."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kubernetes.client import Configuration

from steps.lib.errors import TemporaryError, UserError
from steps.lib.kube import SPEC, Cluster, ExistsError, RefusedError, open_cluster, open_wire
from steps.lib.kube.kinds import EVENT, NODE, POD, WORKFLOW
from tests.kube.api import Api, Object, serving


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def kubeconfig(api: Api, tmp_path: Path) -> Iterator[Path]:
    with serving(api, tmp_path) as config:
        yield config


@pytest.fixture
def cluster(kubeconfig: Path) -> Iterator[Cluster]:
    with open_cluster("compute", kubeconfig=str(kubeconfig), retry_s=1) as cluster:
        yield cluster


def workflow(name: str = "w", spec: str = "", **more: object) -> Object:
    annotations = {"annotations": {SPEC: spec}} if spec else {}
    return {"metadata": {"name": name, "namespace": "team-a", **annotations}, "spec": {}, **more}


def pod(name: str, labels: dict[str, str] | None = None, namespace: str = "team-a") -> Object:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels or {}}}


def test_an_object_is_made_read_changed_and_removed(api, cluster):
    made = cluster.create(WORKFLOW, workflow())
    assert made["metadata"]["uid"]
    assert api.created == ["/apis/argoproj.io/v1alpha1/namespaces/team-a/workflows/w"]
    changed = cluster.patch(WORKFLOW, "team-a", "w", {"spec": {"shutdown": "Stop", "parallelism": 3}})
    assert changed["spec"] == {"shutdown": "Stop", "parallelism": 3}
    assert cluster.patch(WORKFLOW, "team-a", "w", {"spec": {"shutdown": None}})["spec"] == {"parallelism": 3}
    assert cluster.get(WORKFLOW, "team-a", "w")["spec"] == {"parallelism": 3}
    assert cluster.delete(WORKFLOW, "team-a", "w")
    assert cluster.get(WORKFLOW, "team-a", "w") is None


def test_the_token_of_a_kubeconfig_is_sent(api, cluster):
    cluster.version()
    assert api.seen_tokens == ["Bearer x"]


def test_a_pods_own_account_is_sent(api, kubeconfig, tmp_path, monkeypatch):
    from kubernetes.config import incluster_config

    server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"].removeprefix("http://")
    for name, content in (("token", "mine"), ("ca.crt", "-")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", server.partition(":")[0])
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.partition(":")[2])
    inside = open_cluster("compute")
    inside._wire._settings.host = inside._wire._settings.host.replace("https://", "http://")
    inside.version()
    assert api.seen_tokens == ["bearer mine"]


def test_what_is_not_there(cluster):
    assert cluster.get(WORKFLOW, "team-a", "w") is None
    assert cluster.patch(WORKFLOW, "team-a", "w", {}) is None
    assert not cluster.delete(WORKFLOW, "team-a", "w")
    assert cluster.list(WORKFLOW, "team-a") == []
    assert list(cluster.log("team-a", "p")) == []


def test_another_of_the_same_name_is_not_removed(api, cluster):
    uid = cluster.create(WORKFLOW, workflow())["metadata"]["uid"]
    with pytest.raises(ExistsError):
        cluster.delete(WORKFLOW, "team-a", "w", uid="another")
    assert cluster.delete(WORKFLOW, "team-a", "w", uid=uid)


def test_lists_by_label_field_and_namespace(api, cluster):
    api.put(POD, pod("a", {"run": "x", "kind": "y"}))
    api.put(POD, pod("b", {"run": "x"}))
    api.put(POD, pod("a", {"run": "x"}, namespace="team-b"))
    api.put(EVENT, pod("e1") | {"involvedObject": {"name": "a"}})
    api.put(EVENT, pod("e2") | {"involvedObject": {"name": "b"}})
    api.put(NODE, {"metadata": {"name": "n"}})

    def names(*args: object, **kwargs: object) -> list[str]:
        return [item["metadata"]["name"] for item in cluster.list(*args, **kwargs)]

    assert names(POD, "team-a", labels={"run": "x"}) == ["a", "b"]
    assert names(POD, "team-a", labels={"run": "x", "kind": "y"}) == ["a"]
    assert names(POD, "") == ["a", "b", "a"]
    assert names(EVENT, "team-a", field="involvedObject.name=b") == ["e2"]
    assert names(NODE, "") == ["n"]


def test_a_long_list_comes_in_pages(api, cluster):
    for number in range(1001):
        api.put(POD, pod(f"p{number:04d}"))
    assert [item["metadata"]["name"] for item in cluster.list(POD, "team-a")] == [f"p{n:04d}" for n in range(1001)]
    assert len(api.asked) == 3


def test_a_lost_reply_to_create_is_recognised(api, cluster):
    api.drop.append(("POST", "workflows"))
    made = cluster.create(WORKFLOW, workflow(spec="sha256:1"))
    assert made["metadata"]["uid"]
    assert [method for method, _ in api.asked] == ["POST", "POST", "GET"]
    assert len(api.created) == 1


@pytest.mark.parametrize("spec", ["sha256:2", ""])
def test_another_object_of_the_name_is_no_lost_reply(cluster, spec):
    cluster.create(WORKFLOW, workflow(spec="sha256:1"))
    with pytest.raises(ExistsError, match=r"compute cluster: .*already exists"):
        cluster.create(WORKFLOW, workflow(spec=spec))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_overloaded_server_is_asked_again(api, cluster, status):
    api.put(WORKFLOW, workflow())
    api.busy = [status, status]
    assert cluster.get(WORKFLOW, "team-a", "w")
    assert len(api.asked) == 3


def test_a_create_that_ended_in_500_is_not_repeated_blindly(api, cluster):
    api.busy = [500]
    with pytest.raises(TemporaryError, match="status 500"):
        cluster.create(WORKFLOW, workflow())
    assert len(api.asked) == 1


def test_a_server_that_stays_away_is_a_temporary_failure(api, cluster):
    api.away = True
    started = time.monotonic()
    with pytest.raises(TemporaryError, match=r"compute cluster, http://127.0.0.1:.*status 503: away; is it up"):
        cluster.get(WORKFLOW, "team-a", "w")
    assert time.monotonic() - started < 3


def test_a_server_that_is_not_there_is_a_temporary_failure(api, tmp_path):
    with serving(api, tmp_path) as config:
        pass
    with (
        open_cluster("gpu", kubeconfig=str(config), retry_s=0.3) as cluster,
        pytest.raises(TemporaryError, match="gpu cluster"),
    ):
        cluster.version()


def test_an_answer_of_something_else_is_one_line():
    """A login page, say, where the address is that of a proxy."""

    class LoginPage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>sign in</html>")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), LoginPage) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        wire = open_wire("Argo server", f"http://127.0.0.1:{server.server_port}", token="t")
        with pytest.raises(
            RefusedError, match=r"^Argo server, http://127.*: /api is answered by something that is no such server"
        ):
            wire.call("GET", "/api")
        wire.close()
        server.shutdown()


def test_closing_ends_the_wait_for_a_server_that_is_away(api, tmp_path):
    """A thread that follows a log must not outlive its run by `retry_s`, asking and asking."""
    api.away = True
    with serving(api, tmp_path) as config:
        cluster = open_cluster("compute", kubeconfig=str(config), retry_s=600)
        ended = threading.Event()

        def ask() -> None:
            with suppress(TemporaryError):
                cluster.get(WORKFLOW, "team-a", "w")
            ended.set()

        threading.Thread(target=ask, daemon=True).start()
        while len(api.asked) < 2:
            time.sleep(0.01)
        cluster.close()
        assert ended.wait(5)


def test_what_the_server_forbids_is_an_error_of_the_user_at_once(api, cluster):
    api.forbidden.append(("POST", "workflows"))
    with pytest.raises(RefusedError, match=r"compute cluster: POST .*/workflows is forbidden") as raised:
        cluster.create(WORKFLOW, workflow())
    assert isinstance(raised.value, UserError)
    assert len(api.asked) == 1


def test_rights_are_asked_for(api, cluster):
    api.forbidden.append(("create", "workflows"))
    assert not cluster.may("create", WORKFLOW, "team-a")
    assert cluster.may("get", WORKFLOW, "team-a")


def test_version(cluster):
    assert cluster.version() == "v1.35.4"


def test_fields_belong_to_who_applied_them(api, cluster):
    body = {"metadata": {"name": "w", "namespace": "team-a"}, "spec": {"parallelism": 1}}
    cluster.apply(WORKFLOW, body, manager="capacity")
    with pytest.raises(ExistsError, match="capacity"):
        cluster.apply(WORKFLOW, body | {"spec": {"parallelism": 2}}, manager="gitops")
    assert cluster.apply(WORKFLOW, body | {"spec": {"parallelism": 2}}, manager="gitops", force=True)["spec"] == {
        "parallelism": 2
    }


def test_a_log_is_read_on_from_its_last_line(api, cluster):
    path = POD.path("team-a", "p")
    api.put(POD, pod("p"))
    assert list(cluster.log("team-a", "p")) == []  # its container has not started
    api.logs[path] = [b"one", b"two \xff", b""]
    lines = list(cluster.log("team-a", "p", container="main"))
    assert [line for _, line in lines] == [b"one", b"two \xff", b""]
    assert lines[0][0] == "2026-01-01T00:00:01.500000000Z"
    api.logs[path].append(b"four")
    assert list(cluster.log("team-a", "p", since=lines[-1][0])) == [("2026-01-01T00:00:04.500000000Z", b"four")]
    assert "container=main" in api.asked[1][1]


def test_a_log_is_followed_to_its_end(api, cluster):
    path = POD.path("team-a", "p")
    api.logs[path] = [b"one"]
    api.writing.add(path)

    def write() -> None:
        api.logs[path].append(b"two")
        api.writing.discard(path)

    lines = cluster.log("team-a", "p", follow=True)
    assert next(lines)[1] == b"one"
    writer = threading.Thread(target=write)
    writer.start()
    assert [line for _, line in lines] == [b"two"]
    writer.join()


@contextmanager
def answering(status: int, body: bytes) -> Iterator[Cluster]:
    """A server that has one answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    settings = Configuration(host=f"http://127.0.0.1:{server.server_port}")
    try:
        yield Cluster(settings, name="gpu", retry_s=0.3)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_times_of_a_kubelet_in_another_zone_are_told_in_utc():
    lines = b"2026-03-01T01:30:00.25+02:00 one\n2026-02-28T20:00:01-03:30 two\n"
    with answering(200, lines) as cluster:
        assert list(cluster.log("team-a", "p")) == [
            ("2026-02-28T23:30:00.250000000Z", b"one"),
            ("2026-02-28T23:30:01.000000000Z", b"two"),
        ]
        assert [line for _, line in cluster.log("team-a", "p", since="2026-02-28T23:30:00.250000000Z")] == [b"two"]


def test_a_last_line_without_an_end_is_a_line():
    with answering(200, b"2026-03-01T01:30:00Z one\n2026-03-01T01:30:01Z Killed") as cluster:
        assert [line for _, line in cluster.log("team-a", "p")] == [b"one", b"Killed"]


def test_what_a_kubelet_says_in_place_of_a_log_is_no_log():
    said = b"unable to retrieve container logs for containerd://1234\n"
    with answering(200, said) as cluster, pytest.raises(RefusedError, match="log of pod p: unable to retrieve"):
        list(cluster.log("team-a", "p"))


def test_a_log_that_is_refused_is_not_taken_for_one_that_has_not_begun():
    said = b'{"message": "container nope is not valid for pod p"}'
    with answering(400, said) as cluster, pytest.raises(RefusedError, match="container nope is not valid"):
        list(cluster.log("team-a", "p"))
    said = b'{"message": "container \\"main\\" in pod \\"p\\" is waiting to start: PodInitializing"}'
    with answering(400, said) as cluster:
        assert list(cluster.log("team-a", "p")) == []


def test_a_server_that_stays_broken_says_why():
    said = b'{"message": "etcdserver: no leader"}'
    with answering(500, said) as cluster, pytest.raises(TemporaryError, match="status 500: etcdserver: no leader; is"):
        cluster.version()


def test_a_projected_token_is_read_anew_for_every_call(api, kubeconfig, tmp_path):
    server = json.loads(kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    token = tmp_path / "token"
    token.write_text("first\n")
    with open_cluster("gpu", server=server, token_file=str(token)) as cluster:
        cluster.version()
        token.write_text("second\n")
        cluster.version()
    assert api.seen_tokens == ["Bearer first", "Bearer second"]


def test_how_a_server_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(UserError, match=r"compute cluster: .*nothing"):
        open_cluster("compute", kubeconfig=str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"gpu cluster: token file .*: No such file"):
        open_cluster("gpu", server="http://127.0.0.1:1", token_file=str(tmp_path / "token"))
    with pytest.raises(UserError, match="compute cluster: this pod"):
        open_cluster("compute")
