"""Writers that die: what they leave is never seen, and `sweep` takes it away."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steps.lib.store import open_store
from tests.store.servers import Answer, Proxy, Request

UPLOAD = """
import sys
from pathlib import Path
from steps.lib.store import open_store
open_store(sys.argv[1]).upload("d/big", Path(sys.argv[2]))
"""
PUT_FOR_EVER = """
import sys
from steps.lib.store import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
while True:
    for letter in b"ab":
        store.put("d/k", bytes([letter]) * 200_000)
"""


def wait_until(seen: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 60
    while not seen():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)


def sparse(path: Path, size: int) -> Path:
    with path.open("wb") as f:
        f.truncate(size)
    return path


def test_an_upload_into_a_folder_killed(tmp_path: Path) -> None:
    root, store = tmp_path / "store", open_store(f"file://{tmp_path}/store")
    source = sparse(tmp_path / "big", 1 << 30)
    with subprocess.Popen([sys.executable, "-c", UPLOAD, store.uri, str(source)], text=True) as process:
        wait_until(lambda: any(p.stat().st_size for p in root.glob("d/.*")), process)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert store.head("d/big") is None
    assert list(store.list("")) == []
    assert store.sweep(3600) == []
    assert len(store.sweep(-1)) == 1
    assert list(root.glob("d/.*")) == []


@pytest.mark.parametrize("server", ["moto", "versitygw"])
def test_an_upload_in_parts_killed(
    request: pytest.FixtureRequest, use: Callable[[Proxy], str], tmp_path: Path, server: str
) -> None:
    proxy = Proxy(request.getfixturevalue(server))
    request.addfinalizer(proxy.close)
    store = open_store(use(proxy))
    source = sparse(tmp_path / "big", 20 << 20)
    reached, killed = threading.Event(), threading.Event()

    def rule(sent: Request, forward: Callable[[], Answer]) -> Answer:
        if "partNumber=2" in sent.path:
            reached.set()
            killed.wait(60)
        return forward()

    proxy.rule = rule
    with subprocess.Popen([sys.executable, "-c", UPLOAD, store.uri, str(source)], text=True) as process:
        wait_until(reached.is_set, process)
        process.kill()
    killed.set()
    assert store.head("d/big") is None
    assert list(store.list("")) == []
    if server != "moto":  # there every upload began in 2010
        assert store.sweep(3600) == []
    assert store.sweep(-60) == ["d/big"]
    assert store.sweep(-60) == []


@pytest.mark.parametrize("after_ms", [0, 3, 7, 11])
def test_puts_into_a_folder_killed(tmp_path: Path, after_ms: int) -> None:
    store = open_store(f"file://{tmp_path}/store")
    with subprocess.Popen([sys.executable, "-c", PUT_FOR_EVER, store.uri], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        time.sleep(after_ms / 1000)  # where in its work it dies is the point
        process.kill()
    assert store.get("d/k") in (b"a" * 200_000, b"b" * 200_000) if store.head("d/k") else True
    assert {head.key for head in store.list("")} <= {"d/k"}
    store.swap("d/k", b"its locks are free", store.put("d/k", b"1"))
