"""A double of an API server: keeps objects, speaks REST over HTTP, and fails when it is told to.

    with serving(Api(), tmp_path) as kubeconfig:
        cluster = open_cluster("gpu", kubeconfig=str(kubeconfig))

It knows no kind: what is created below a path is there. No admission, no garbage collection, no controllers.
"""

import copy
import itertools
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from steps.lib.kube.kinds import Kind

Object = dict[str, Any]
PROXIED = re.compile(r"(/api/v1/namespaces/[^/]+/services/[^/:]+):\d+/proxy(/.*)")
PLURALS = re.compile(r"/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/[^/]+)?/[^/]+")
"""Path of a collection."""


class Api:
    """What the server holds, and how it fails; safe to use from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[str, Object] = {}
        """Path -> object."""
        self.logs: dict[str, list[bytes]] = {}
        """Path of a pod -> lines that it has written; one that is followed and still grows ends when its path
        leaves `writing`."""
        self.writing: set[str] = set()
        self.drop: list[tuple[str, str]] = []
        """(method, part of the path): done, but its reply is lost; each once."""
        self.forbidden: list[tuple[str, str]] = []
        """(method, part of the path): 403."""
        self.away = False
        """Whether every call gets 503."""
        self.busy: list[int] = []
        """The next calls get these statuses."""
        self.behind: Callable[[str, str, str, bytes], tuple[int, bytes]] | None = None
        """Answers for servers behind Services: path of the Service, method, path, body -> status, body."""
        self.created: list[str] = []
        """Paths of all that was ever created."""
        self.asked: list[tuple[str, str]] = []
        """(method, path with query) of every call."""
        self.seen_tokens: list[str] = []
        """The Authorization header of every call."""
        self._versions = itertools.count(1)

    def put(self, kind: Kind, body: Object) -> Object:
        """Create or replace an object; the very object that is kept, so that a test may change it."""
        meta = body.setdefault("metadata", {})
        path = kind.path(meta.get("namespace", ""), meta["name"])
        with self.lock:
            return self.keep(path, body)

    def of(self, kind: Kind, namespace: str = "") -> list[Object]:
        """All objects of a kind."""
        with self.lock:
            return [o for path, o in sorted(self.objects.items()) if is_in(path, kind.path(namespace))]

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object if it is there."""
        with self.lock:
            self.objects.pop(kind.path(namespace, name), None)

    def keep(self, path: str, body: Object) -> Object:
        """Keep a new object, with what a server adds."""
        meta = body["metadata"]
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        body.setdefault("status", {})
        self.objects[path] = body
        self.created.append(path)
        return self.touch(path)

    def touch(self, path: str) -> Object:
        """An object has changed."""
        self.objects[path]["metadata"]["resourceVersion"] = str(next(self._versions))
        return self.objects[path]


class _Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path, query = self._begin()
        if self._refused(path):
            return
        if path == "/version":
            return self._reply(200, {"gitVersion": "v1.35.4"})
        if proxied := PROXIED.fullmatch(path):
            return self._ask(proxied, b"")
        if path.endswith("/log"):
            return self._log(path.removesuffix("/log"), query)
        with self.api.lock:
            if path in self.api.objects:
                return self._reply(200, self.api.objects[path])
            if not PLURALS.fullmatch(path):
                return self._fail(404, f"{path} not found")
            items = [o for p, o in sorted(self.api.objects.items()) if is_in(p, path) and _selected(o, query)]
            start, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
            more = {"continue": str(start + limit)} if len(items) > start + limit else {}
            self._reply(200, {"metadata": more, "items": items[start : start + limit]})

    def do_POST(self) -> None:
        path, _ = self._begin()
        if proxied := PROXIED.fullmatch(path):
            return self._ask(proxied, self.rfile.read(int(self.headers["Content-Length"])))
        body = self._body()
        if self._refused(path):
            return
        if "accessreviews" in path:
            return self._reply(201, body | {"status": {"allowed": not self._is_forbidden(body["spec"])}})
        key = f"{path}/{body['metadata']['name']}"
        with self.api.lock:
            if key in self.api.objects:
                return self._fail(409, f"{key} already exists")
            made = copy.deepcopy(self.api.keep(key, body))
        self._done(path, 201, made)

    def do_PATCH(self) -> None:
        path, query = self._begin()
        patch = self._body()
        if self._refused(path):
            return
        with self.api.lock:
            applies = self.headers["Content-Type"] == "application/apply-patch+yaml"
            if path not in self.api.objects:
                if not applies:
                    return self._fail(404, f"{path} not found")
                self.api.keep(path, {"metadata": patch["metadata"]})
            if applies and (owner := self._conflict(path, patch, query)):
                return self._fail(409, f'conflict with "{owner}"')
            _merge(self.api.objects[path], patch)
            made = copy.deepcopy(self.api.touch(path))
        self._done(path, 200, made)

    def do_DELETE(self) -> None:
        path, _ = self._begin()
        options = self._body()
        if self._refused(path):
            return
        with self.api.lock:
            there = self.api.objects.get(path)
            if there is None:
                return self._fail(404, f"{path} not found")
            if options.get("preconditions", {}).get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
                return self._fail(409, f"{path}: another uid")
            del self.api.objects[path]
        self._done(path, 200, {})

    def _conflict(self, path: str, patch: Object, query: dict[str, str]) -> str:
        """Another manager that owns a field of `spec` which the patch sets to something else."""
        mine = query["fieldManager"]
        owners = self.api.objects[path].setdefault("managers", {})
        there = self.api.objects[path].get("spec", {})
        for name, value in patch.get("spec", {}).items():
            owner = owners.get(name, mine)
            if owner != mine and there.get(name) != value and query["force"] != "true":
                return str(owner)
            owners[name] = mine
        return ""

    def _ask(self, proxied: re.Match[str], body: bytes) -> None:
        assert self.api.behind
        status, data = self.api.behind(proxied[1], self.command, proxied[2], body)
        self._send(status, data)

    def _log(self, pod: str, query: dict[str, str]) -> None:
        lines = self.api.logs.get(pod)
        if lines is None:
            there = pod in self.api.objects
            return self._fail(400 if there else 404, f"{pod}: {'waiting to start' if there else 'not found'}")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent = 0
        while True:
            ended = query.get("follow") != "true" or pod not in self.api.writing
            for line in lines[sent:]:
                sent += 1
                stamp = f"2026-01-01T00:00:{sent:02d}.5Z"
                if f"2026-01-01T00:00:{sent:02d}" >= query.get("sinceTime", "").partition(".")[0]:
                    self._chunk(f"{stamp} ".encode() + line + b"\n")
            if ended:
                return self._chunk(b"")
            time.sleep(0.01)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _begin(self) -> tuple[str, dict[str, str]]:
        self.api.asked.append((self.command, self.path))
        self.api.seen_tokens.append(self.headers.get("Authorization", ""))
        url = urlsplit(self.path)
        return url.path, {name: values[0] for name, values in parse_qs(url.query).items()}

    def _body(self) -> Object:
        length = int(self.headers.get("Content-Length") or 0)
        return dict(json.loads(self.rfile.read(length) or b"{}"))

    def _refused(self, path: str) -> bool:
        if self.api.away or self.api.busy:
            self._fail(503 if self.api.away else self.api.busy.pop(0), "away")
            return True
        if any(self.command == method and part in path for method, part in self.api.forbidden):
            self._fail(403, f"{self.command} {path} is forbidden")
            return True
        return False

    def _is_forbidden(self, review: Object) -> bool:
        asked = review["resourceAttributes"]
        return any(part == asked["resource"] and method == asked["verb"] for method, part in self.api.forbidden)

    def _done(self, path: str, status: int, body: Object) -> None:
        for drop in self.api.drop:
            if drop[0] == self.command and drop[1] in path:
                self.api.drop.remove(drop)
                self.close_connection = True
                return
        self._reply(status, body)

    def _fail(self, status: int, message: str) -> None:
        self._reply(status, {"kind": "Status", "message": message})

    def _reply(self, status: int, body: Object) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def is_in(path: str, collection: str) -> bool:
    """Whether an object is in a collection; one without a namespace holds those of all namespaces."""
    if path.rpartition("/")[0] == collection:
        return True
    root, _, plural = collection.rpartition("/")
    return re.fullmatch(rf"{re.escape(root)}/namespaces/[^/]+/{plural}/[^/]+", path) is not None


def _selected(item: Object, query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    wanted = dict(pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair)
    field, _, value = query.get("fieldSelector", "").partition("=")
    there: Any = item
    for part in field.split(".") if field else ():
        there = there.get(part, {})
    return wanted.items() <= labels.items() and (not field or there == value)


def _merge(target: Object, patch: Object) -> None:
    """RFC 7386."""
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict):
            if not isinstance(target.get(name), dict):
                target[name] = {}
            _merge(target[name], value)
        else:
            target[name] = value


@contextmanager
def serving(api: Api, folder: Path) -> Iterator[Path]:
    """The API server on loopback; a kubeconfig for it."""
    handler = type("Handler", (_Handler,), {"api": api})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    config = folder / "kubeconfig.json"
    config.write_text(json.dumps(_kubeconfig(f"http://127.0.0.1:{server.server_port}")))
    try:
        yield config
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _kubeconfig(url: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
