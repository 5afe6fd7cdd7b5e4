"""The engines that the conformance suite runs on, behind one face."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.engine.workflows import Document

DEADLINE_S = 60


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an engine says of a run that has ended."""

    phase: str
    exit_code: int
    message: str
    nodes: dict[str, dict[str, Any]]
    """Node -> phase, exit_code, message, outputs, attempts, wall_s."""
    logs: dict[str, str]
    """Node -> what its last attempt wrote."""
    wall_s: float

    def value(self, node: str) -> str:
        """The output `value` of a node."""
        return self.nodes[node]["outputs"]["value"]

    def phases(self) -> dict[str, str]:
        """Node -> phase."""
        return {name: node["phase"] for name, node in self.nodes.items()}


class Running(Protocol):
    """A run that goes on."""

    def wait_for_line(self, node: str, start: str) -> str:
        """The first line of the node's log that starts with `start`, once it is there."""

    def cancel(self) -> None:
        """Ask for its end."""

    def result(self) -> Result:
        """How it ended, once it has."""


class Engine(Protocol):
    """Runs workflows."""

    def start(self, document: Document) -> Running:
        """Start a run."""

    def run(self, document: Document) -> Result:
        """Run to the end."""


class LocalRun:
    """A run of the local engine, in a process of its own (local_driver.py)."""

    def __init__(self, document: Document, scratch: Path, grace_s: float):
        self._scratch = scratch
        driver = Path(__file__).with_name("local_driver.py")
        self.process = subprocess.Popen(
            [sys.executable, str(driver), str(scratch), str(grace_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        )
        assert self.process.stdin
        json.dump(document, self.process.stdin)
        self.process.stdin.close()

    def wait_for_line(self, node: str, start: str) -> str:
        """See Running."""

        def found() -> str:
            return next((line for line in self._log(node).splitlines() if line.startswith(start)), "")

        return wait_until(found, f"a line {start!r} of {node}")

    def cancel(self) -> None:
        """See Running."""
        self.process.send_signal(signal.SIGTERM)

    def result(self) -> Result:
        """See Running."""
        assert self.process.stdout
        text = self.process.stdout.read()
        self.process.stdout.close()
        code = self.process.wait(DEADLINE_S)
        told = json.loads(text)
        assert told["exit_code"] == code
        return Result(logs={name: self._log(name) for name in told["nodes"]}, **told)

    def _log(self, node: str) -> str:
        attempts = sorted((self._scratch / node).glob("*/log"), key=lambda path: int(path.parent.name))
        return attempts[-1].read_text() if attempts else ""


class LocalEngine:
    """The local engine as the suite sees it."""

    def __init__(self, scratch: Path, grace_s: float = 5):
        self._scratch = scratch
        self._grace_s = grace_s
        self._runs: list[LocalRun] = []

    def start(self, document: Document) -> LocalRun:
        """See Engine."""
        self._runs.append(LocalRun(document, self._scratch / str(len(self._runs)), self._grace_s))
        return self._runs[-1]

    def run(self, document: Document) -> Result:
        """See Engine."""
        return self.start(document).result()

    def close(self) -> None:
        """End what a failed test has left."""
        for run in self._runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
            if run.process.stdout:
                run.process.stdout.close()


def wait_until(found: Callable[[], Any], what: str, seconds: float = DEADLINE_S) -> Any:
    """What `found()` returns, once it is true."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return value


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
