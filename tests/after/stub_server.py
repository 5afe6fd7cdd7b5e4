"""Stands for vLLM: takes its command line and speaks as much of the API as the product uses.

    python stub_server.py [--starts FILE] [--mode MODE] [--old URL] [--child FILE] <vLLM's arguments>

--starts   a file that gets one line a start: the model's folder
--mode     ok; empty: no text; deaf: the stop token does not stop; silent: never healthy;
           refuses: every completion is a 400; any other text: printed, then exit code 1; kill: SIGKILL to itself
--old      the answer says whether that URL was healthy when it was asked
--child    a file that gets the pid of a child process which runs for ever
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("starts", "mode", "old", "child", "model", "served-model-name", "host", "port"):
        parser.add_argument(f"--{name}")
    args, _ = parser.parse_known_args()
    if args.starts:
        with open(args.starts, "a") as f:
            f.write(f"{args.model}\n")
    if args.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(f"{args.child}.tmp").write_text(str(child.pid))
        os.rename(f"{args.child}.tmp", args.child)
    if args.mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.mode not in (None, "ok", "empty", "deaf", "silent", "refuses"):
        sys.exit(args.mode)  # prints it to stderr, code 1
    print("INFO: stub is up", flush=True)
    server = ThreadingHTTPServer((args.host, int(args.port)), handler(args))
    server.serve_forever()


def handler(args: argparse.Namespace) -> type[BaseHTTPRequestHandler]:
    """The API, for one set of arguments."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self.answer(503 if args.mode == "silent" else 200, {})
            elif self.path == "/v1/models":
                self.answer(200, {"data": [{"id": args.served_model_name}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if args.mode == "refuses":
                return self.answer(400, {"error": {"message": "no chat template"}})
            only = asked.get("allowed_token_ids")
            stops = bool(only) and args.mode != "deaf"
            text = "" if only or args.mode == "empty" else self.text(asked)
            choice = {"text": text, "message": {"content": text}, "finish_reason": "stop" if stops else "length"}
            return self.answer(200, {"choices": [choice], "usage": {"completion_tokens": 1 if stops else 2}})

        def text(self, asked: dict) -> str:
            if not args.old:
                return f" after {asked.get('prompt')!r}"
            try:
                urllib.request.urlopen(f"{args.old}/health", timeout=5).close()
            except urllib.error.URLError:
                return "the old one is gone"
            return "the old one answers"

        def answer(self, code: int, body: dict) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


if __name__ == "__main__":
    main()
