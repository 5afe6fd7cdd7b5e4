"""An API server of a few lines: keeps objects, speaks REST, and fails when it is told to."""

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from steps.lib.kube.kinds import Kind

Object = dict[str, Any]


class Api:
    """The server's objects, by path; safe to use from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[str, Object] = {}
        self.logs: dict[str, list[bytes]] = {}
        """Path of a pod -> lines."""
        self.drop: list[tuple[str, str]] = []
        """(method, part of the path): done, but its reply is lost; each once."""
        self.forbidden: list[tuple[str, str]] = []
        """(method, part of the path): 403."""
        self.away = False
        """Whether every call gets 503."""
        self.created: list[str] = []
        """Paths of all that was ever created."""

    def put(self, kind: Kind, body: Object) -> Object:
        """Create or replace an object."""
        meta = body.setdefault("metadata", {})
        with self.lock:
            path = kind.path(meta.get("namespace", ""), meta["name"])
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            body.setdefault("status", {})
            self.objects[path] = body
            self.created.append(path)
            return body

    def of(self, kind: Kind, namespace: str = "") -> list[Object]:
        """All objects of a kind."""
        with self.lock:
            return [self.objects[path] for path in sorted(self.objects) if _is_in(path, kind.path(namespace), kind)]

    def remove(self, kind: Kind, namespace: str, name: str) -> None:
        """Delete an object if it is there."""
        with self.lock:
            self.objects.pop(kind.path(namespace, name), None)


def _is_in(path: str, collection: str, kind: Kind) -> bool:
    if not kind.namespaced or "/namespaces/" in collection:
        return path.startswith(f"{collection}/")
    root = collection.removesuffix(f"/{kind.plural}")
    return re.fullmatch(rf"{re.escape(root)}/namespaces/[^/]+/{kind.plural}/[^/]+", path) is not None


class _Handler(BaseHTTPRequestHandler):
    api: Api
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        path, query = self._asked()
        if path.endswith("/log"):
            return self._log(path.removesuffix("/log"))
        if self._refused("GET", path):
            return
        with self.api.lock:
            if path in self.api.objects:
                return self._reply(200, self.api.objects[path])
            if re.search(r"/[^/]+s/[^/]+$", path) and not re.search(r"/(v\d\w*|namespaces/[^/]+)/[^/]+$", path):
                return self._fail(404, f"{path} not found")
            wanted = dict(pair.split("=", 1) for pair in query.get("labelSelector", "").split(",") if pair)
            items = [o for p, o in sorted(self.api.objects.items()) if _listed(p, path)]
            items = [o for o in items if wanted.items() <= (o["metadata"].get("labels") or {}).items()]
            self._reply(200, {"metadata": {}, "items": items})

    def do_POST(self) -> None:
        path, _ = self._asked()
        body = self._body()
        if self._refused("POST", path):
            return
        key = f"{path}/{body['metadata']['name']}"
        with self.api.lock:
            if key in self.api.objects:
                return self._fail(409, f"{key} already exists")
            body["metadata"] |= {
                "uid": str(uuid.uuid4()),
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            body.setdefault("status", {})
            self.api.objects[key] = body
            self.api.created.append(key)
        self._done("POST", path, 201, body)

    def do_PATCH(self) -> None:
        path, _ = self._asked()
        patch = self._body()
        if self._refused("PATCH", path):
            return
        with self.api.lock:
            if path not in self.api.objects:
                return self._fail(404, f"{path} not found")
            _merge(self.api.objects[path], patch)
        self._done("PATCH", path, 200, self.api.objects[path])

    def do_DELETE(self) -> None:
        path, _ = self._asked()
        options = self._body()
        if self._refused("DELETE", path):
            return
        with self.api.lock:
            there = self.api.objects.get(path)
            if there is None:
                return self._fail(404, f"{path} not found")
            if options.get("preconditions", {}).get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
                return self._fail(409, f"{path}: another uid")
            del self.api.objects[path]
        self._done("DELETE", path, 200, {})

    def _log(self, pod: str) -> None:
        if self._refused("GET", pod):
            return
        lines = self.api.logs.get(pod, [])
        data = b"".join(b"2026-01-01T00:00:00.%09dZ %s\n" % (number, line) for number, line in enumerate(lines, 1))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _asked(self) -> tuple[str, dict[str, str]]:
        url = urlsplit(self.path)
        return url.path, {name: values[0] for name, values in parse_qs(url.query).items()}

    def _body(self) -> Object:
        length = int(self.headers.get("Content-Length") or 0)
        return dict(json.loads(self.rfile.read(length) or b"{}"))

    def _refused(self, method: str, path: str) -> bool:
        if self.api.away:
            self._fail(503, "away")
            return True
        if any(method == m and part in path for m, part in self.api.forbidden):
            self._fail(403, f"{method} {path} is forbidden")
            return True
        return False

    def _done(self, method: str, path: str, status: int, body: Object) -> None:
        for drop in self.api.drop:
            if drop[0] == method and drop[1] in path:
                self.api.drop.remove(drop)
                self.close_connection = True
                return
        self._reply(status, body)

    def _fail(self, status: int, message: str) -> None:
        self._reply(status, {"kind": "Status", "message": message})

    def _reply(self, status: int, body: Object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _listed(path: str, collection: str) -> bool:
    if path.rpartition("/")[0] == collection:
        return True
    root, _, plural = collection.rpartition("/")
    return re.fullmatch(rf"{re.escape(root)}/namespaces/[^/]+/{plural}/[^/]+", path) is not None


def _merge(target: Object, patch: Object) -> None:
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        elif isinstance(value, dict) and isinstance(target.get(name), dict):
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
        "current-context": "gpu",
        "clusters": [{"name": "gpu", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "gpu", "context": {"cluster": "gpu", "user": "me"}}],
    }
