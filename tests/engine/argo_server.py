"""A double of an Argo server: its REST API over the objects of tests.kube.api, so that one Stage plays for both."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from steps.lib.kube.kinds import POD, WORKFLOW
from tests.kube.api import Api

TOKEN = "Bearer secret"
_PATH = re.compile(r"/api/v1/workflows/(?P<namespace>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<verb>[^/]+))?")


class _Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        found = _PATH.fullmatch(url.path)
        assert found, self.path
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        self.api.asked.append((self.command, self.path))
        if self.api.away or self.api.busy:
            return self._reply(503 if self.api.away else self.api.busy.pop(0), {"message": "away"})
        if self.headers.get("Authorization") != TOKEN:
            return self._reply(401, {"code": 16, "message": "token not valid"})
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        with self.api.lock:
            status, answer = self._do(found["namespace"], found["name"], found["verb"], body, query)
        if (drop := (self.command, "workflows")) in self.api.drop:
            self.api.drop.remove(drop)
            self.close_connection = True
            return None
        return self._reply(status, answer)

    def _do(
        self, namespace: str, name: str | None, verb: str | None, body: dict, query: dict[str, str]
    ) -> tuple[int, Any]:
        if self.command == "POST":
            made = body["workflow"]
            path = WORKFLOW.path(namespace, made["metadata"]["name"])
            if path in self.api.objects:
                return 409, {"code": 6, "message": f'workflows.argoproj.io "{made["metadata"]["name"]}" already exists'}
            return 200, self.api.keep(path, made)
        if name is None:
            return 200, {"items": self.api.of(WORKFLOW, namespace) or None}
        path = WORKFLOW.path(namespace, name)
        if path not in self.api.objects:
            return 404, {"code": 5, "message": f'workflows.argoproj.io "{name}" not found'}
        if self.command == "DELETE":
            del self.api.objects[path]
            return 200, {}
        if verb == "terminate":
            self.api.objects[path]["spec"]["shutdown"] = "Terminate"
        if verb == "log":
            lines = self.api.logs.get(POD.path(namespace, query["podName"]), [])
            said = [f"2026-01-01T00:00:{i:02d}.5Z {line.decode()}" for i, line in enumerate(lines, 1)]
            return 200, [{"result": {"content": text, "podName": query["podName"]}} for text in said]
        return 200, self.api.objects[path]

    def _reply(self, status: int, body: Any) -> None:
        lines = body if isinstance(body, list) else [body]
        data = "".join(json.dumps(line) + "\n" for line in lines).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving_argo(api: Api) -> Iterator[str]:
    """The server on loopback; its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
