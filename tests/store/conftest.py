"""The stores that the conformance suite runs on: a folder, moto, and versitygw, a real S3 server."""

import os
import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.lib.store import Store, open_store
from tests.store.servers import BUCKET, KEY_ID, SECRET, Proxy, Server


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    """moto, one request at a time: it checks a write's condition without a lock."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def one_at_a_time(environ: Any, start_response: Any) -> Any:
        with lock:
            return app(environ, start_response)

    httpd = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    server = Server(f"http://127.0.0.1:{httpd.server_port}")
    server.client().create_bucket(Bucket=BUCKET)
    yield server
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture(scope="session")
def versitygw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """versitygw on a temporary folder."""
    binary = _tool("versitygw")
    if binary is None:
        pytest.skip("versitygw is in neither $TRIPOD_TOOLS, ~/.cache/tripod/bin nor $PATH")
    root = tmp_path_factory.mktemp("versitygw")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary, "--port", f"127.0.0.1:{port}", "--access", KEY_ID, "--secret", SECRET, "--keep-alive", "--quiet"]
    process = subprocess.Popen([*command, "posix", str(root)], stdout=subprocess.DEVNULL)
    try:
        _wait_for_port(port, process)
        server = Server(f"http://127.0.0.1:{port}")
        server.client().create_bucket(Bucket=BUCKET)
        yield server
    finally:
        process.kill()  # asked politely it waits for idle connections
        process.wait()
        shutil.rmtree(root)


@pytest.fixture(params=["file", "moto", "versitygw"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, use: Callable[[Server], str]) -> str:
    """Where an empty store of each kind is; the environment reaches it, in processes too."""
    if request.param == "file":
        return f"file://{tmp_path}/store"
    return use(request.getfixturevalue(request.param))


@pytest.fixture
def s3_uri(moto: Server, use: Callable[[Server], str]) -> str:
    """An empty store in moto."""
    return use(moto)


@pytest.fixture
def each(uri: str) -> Store:
    """An empty store of each kind."""
    return open_store(uri)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Any], str]:
    """Point the AWS_* environment at a server and get the URI of an empty prefix there."""

    def use(server: Any) -> str:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))
        return f"s3://{BUCKET}/{uuid.uuid4().hex}/exp=1"

    return use


@pytest.fixture
def proxy(moto: Server) -> Iterator[Proxy]:
    """A proxy in front of moto."""
    proxy = Proxy(moto)
    yield proxy
    proxy.close()


def _tool(name: str) -> str | None:
    folders = [os.environ.get("TRIPOD_TOOLS", ""), str(Path.home() / ".cache/tripod/bin"), os.environ.get("PATH", "")]
    return shutil.which(name, path=os.pathsep.join(filter(None, folders)))


def _wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"versitygw did not open port {port}, exit code {process.poll()}")
