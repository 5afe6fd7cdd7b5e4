"""steps.notify against a real receiver: what it gets, and that the URL is never shown."""

import json
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from steps import notify
from steps.lib.errors import TemporaryError, UserError
from tests.steps.calling import context

SECRET = "token-4711"
PARAMS = notify.Params(run="tiny-1", status="Failed", pipeline="train", model="tiny")


@pytest.fixture
def receiver():
    """A webhook that answers with `answer` and keeps what it got."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            server.got.append((self.path, self.headers["content-type"], json.loads(body)))
            self.send_response(server.answer)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.got, server.answer = [], 200
    server.url = f"http://127.0.0.1:{server.server_port}/{SECRET}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def run(store, url: str, said: list[str] | None = None) -> notify.Result:
    return notify.run(PARAMS, context(store, env={"TRIPOD_WEBHOOK_URL": url}, say=(said or []).append))


def test_the_receiver_gets_one_json_object(store, receiver):
    assert run(store, receiver.url).sent
    body = {
        "text": "train tiny tiny-1: Failed",
        "run": "tiny-1",
        "status": "Failed",
        "pipeline": "train",
        "model": "tiny",
    }
    assert receiver.got == [(f"/{SECRET}", "application/json", body)]


def test_without_a_url_nobody_is_told(store):
    assert run(store, "") == notify.Result(sent=False)


@pytest.mark.parametrize(("answer", "kind"), [(500, TemporaryError), (429, TemporaryError), (404, UserError)])
def test_a_refusal_has_its_kind(store, receiver, answer, kind):
    receiver.answer = answer
    with pytest.raises(kind, match=f"answered {answer}") as caught:
        run(store, receiver.url)
    assert_silent(caught)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (f"ftp://host/{SECRET}", UserError),
        (f"http://host with spaces/{SECRET}", TemporaryError),
        (f"http://127.0.0.1:port/{SECRET}", TemporaryError),
        (f"http://127.0.0.1:1/{SECRET}", TemporaryError),
    ],
)
def test_the_url_is_never_shown(store, url, kind):
    said: list[str] = ["first"]
    with pytest.raises(kind) as caught:
        run(store, url, said)
    assert_silent(caught)
    assert SECRET not in "".join(said)


def assert_silent(caught) -> None:
    assert SECRET not in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
