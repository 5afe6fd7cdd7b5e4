"""S3 servers for tests: where one is, and a proxy that lets things go wrong on the way to it."""

import contextlib
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import boto3

BUCKET = "tests.tripod"  # the dot: only path-style addresses reach it
KEY_ID, SECRET = "test-key-id", "test-secret-key"


@dataclass
class Server:
    """An S3 server on loopback with the bucket in it."""

    endpoint: str

    def client(self) -> Any:
        """boto3's client, to look from outside."""
        session = boto3.Session(aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET, region_name="us-east-1")
        return session.client("s3", endpoint_url=self.endpoint)


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """What a server says."""

    status: int
    code: str = ""
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.code:
            self.body = f"<Error><Code>{self.code}</Code><Message>because {self.code}</Message></Error>".encode()


DROP = Answer(0)
"""Close the connection without an answer."""
Rule = Callable[[Request, Callable[[], Answer]], Answer]
"""Says the answer to a request; the second argument forwards it to the server behind."""


class Proxy:
    """An HTTP server in front of another; `rule` decides what happens to each request."""

    def __init__(self, behind: Server):
        self.rule: Rule = lambda request, forward: forward()
        self.seen: list[Request] = []
        host, _, port = behind.endpoint.removeprefix("http://").partition(":")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def handle_any(self) -> None:
                body = self._read_body()
                request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
                proxy.seen.append(request)
                answer = proxy.rule(request, lambda: _forward(host, int(port), request, self.headers))
                if answer is DROP:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                length = answer.headers.get("Content-Length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            def _read_body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    length = int(self.headers.get("Content-Length") or 0)
                    body = self.rfile.read(length)
                    if len(body) < length:
                        raise ConnectionError("the client went away")
                    return body
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                del self.headers["Transfer-Encoding"]
                self.headers["Content-Length"] = str(len(body))
                return body

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # the client went away, as some tests make it do
                    super().handle()

        self._httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._httpd.daemon_threads = True
        self._thread = threading.Thread(target=self._httpd.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._httpd.server_port}"

    def speak_tls(self, context: ssl.SSLContext) -> None:
        """From the next connection on."""
        self._httpd.socket = context.wrap_socket(self._httpd.socket, server_side=True)
        self.endpoint = self.endpoint.replace("http://", "https://")

    def close(self) -> None:
        """Stop serving."""
        self._httpd.shutdown()
        self._thread.join()
        self._httpd.server_close()


def _forward(host: str, port: int, request: Request, headers: Any) -> Answer:
    connection = HTTPConnection(host, port, timeout=30)
    try:
        connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(request.body)
        got = connection.getresponse()
        return Answer(got.status, body=got.read(), headers=dict(got.getheaders()))
    finally:
        connection.close()
