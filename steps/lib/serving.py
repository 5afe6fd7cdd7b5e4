"""Servers on this machine that stayed after the step that started them.

    $TRIPOD_STATE/serving/<host>/<store>/<name>.json     what serves under a name, the newest first
    $TRIPOD_STATE/serving/<host>/<store>/<name>.lock     flock(2): one deployment of a name at a time
    $TRIPOD_STATE/serving/<host>/<store>/<name>/<n>/     the model's files and the server's log

TRIPOD_STATE is by default $XDG_STATE_HOME/tripod, else ~/.local/state/tripod. `<host>` is this machine's
name: a home folder may be shared. `<store>` is a digest of the store's URI: two stores may serve the same
name. A process is known by its place, its pid and when it started; a file with a server of another place
(a container with this machine's name) is left alone. The first of a file that is alive is what serves;
`settle` ends the others and removes what dead ones left. So a swap can be cut at any point: write the new
one before the old, let it stay, settle.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from steps.lib import process
from steps.lib.digest import sha256_hex
from steps.lib.errors import TemporaryError, UserError, about_file
from steps.lib.wait import wait

_STOP_S = 30.0


class Endpoint(BaseModel):
    """One server that stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """What users put into a request."""
    model: str
    """The model folder in the store."""
    digest: str
    """Of the model."""
    port: int
    host: str
    boot_id: str
    pid_space: str
    """With the two before it a steps.lib.process.Place: where `pid` means the server."""
    pid: int
    """Of the guard: SIGTERM to it ends the server."""
    started: str
    """When the process with that pid started, as steps.lib.process tells it."""
    since: float
    """Seconds since the epoch."""
    settings: dict[str, Any]
    """What the server was started with; another value needs another server."""
    folder: str
    """Its files on this machine."""

    @property
    def url(self) -> str:
        """The base of the API, as clients take it."""
        return f"{self.base}/v1"

    @property
    def base(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the server has printed."""
        return Path(self.folder) / "server.log"

    @property
    def elsewhere(self) -> bool:
        """Whether its processes cannot be seen from here. Those of an earlier start of this machine are gone."""
        here = process.place()
        return self.host != here.host or (self.boot_id == here.boot_id and self.pid_space != here.pid_space)

    @property
    def alive(self) -> bool:
        """Whether the process that was started is still there; asked of what is not elsewhere."""
        return self.boot_id == process.boot_id() and process.is_alive(self.pid, self.started)


_ENDPOINTS = TypeAdapter(list[Endpoint])


class Serving:
    """The servers of one store on this machine.

    A state file that is damaged, or names a server of another place, is never written and nothing that it
    may name is removed: a server may run that only this file knows. Methods that take a name raise UserError
    for its file.
    """

    def __init__(self, env: Mapping[str, str], store_uri: str):
        state = env.get("TRIPOD_STATE") or os.path.join(env.get("XDG_STATE_HOME") or "~/.local/state", "tripod")
        place = Path(os.path.expanduser(state)).absolute() / "serving" / (socket.gethostname() or "localhost")
        self._root = place / sha256_hex(store_uri.encode())[:16]

    def find(self, name: str) -> Endpoint | None:
        """What serves under `name`."""
        return next((endpoint for endpoint in self._read(self._path(name)) if endpoint.alive), None)

    def all(self) -> tuple[list[Endpoint], list[str]]:
        """Everything that serves, by name; and a line for each state file that cannot be told from here."""
        endpoints, problems = [], []
        for path in sorted(self._root.glob("*.json")):
            try:
                endpoints += [e for e in self._read(path) if e.alive][:1]
            except UserError as e:
                problems.append(str(e))
        return sorted(endpoints, key=lambda e: e.name), problems

    def keep(self, endpoint: Endpoint) -> None:
        """Make `endpoint` what serves under its name. The caller holds the lock."""
        path = self._path(endpoint.name)
        self._write(path, [endpoint, *self._read(path)])

    def end(self, endpoint: Endpoint) -> None:
        """End what serves. The caller holds the lock. Raises TemporaryError as `settle`."""
        _stop(endpoint)
        self.settle(endpoint.name)

    def settle(self, name: str) -> Endpoint | None:
        """End all but the one that serves, and clean up. The caller holds the lock.

        Raises:
            TemporaryError: a server does not end.
        """
        path = self._path(name)
        serves = self.find(name)
        for endpoint in self._read(path):
            if endpoint != serves:
                _stop(endpoint)
        for folder in path.with_suffix("").glob("*"):
            if not serves or folder != Path(serves.folder):
                shutil.rmtree(folder, ignore_errors=True)
        if serves:
            self._write(path, [serves])
        else:
            path.unlink(missing_ok=True)
        return serves

    def new_folder(self, name: str) -> Path:
        """A fresh folder for the files of one server of `name`."""
        parent = self._path(name).with_suffix("")
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent, prefix=""))

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the name against other deployments on this machine.

        Raises:
            TemporaryError: another one holds it.
        """
        path = self._path(name).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as f:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as e:
                raise TemporaryError(f"{name}: another deployment of this name is at work on this machine") from e
            yield

    def _path(self, name: str) -> Path:
        plain = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40]
        return self._root / f"{plain}-{sha256_hex(name.encode())[:8]}.json"

    @staticmethod
    def _read(path: Path) -> list[Endpoint]:
        try:
            endpoints = _ENDPOINTS.validate_json(path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as e:
            raise UserError(f"{path}: {e.strerror}; it names a server: make it readable") from e
        except ValidationError as e:
            raise UserError(
                f"{path}: unreadable: {e.errors()[0]['msg']}; end the vLLM that it may name (ps), then remove the file"
            ) from e
        if far := next((e for e in endpoints if e.elsewhere), None):
            raise UserError(
                f"{path}: {far.name} is served from another place ({far.host}, {far.pid_space or 'no /proc'}, pid {far.pid}); "
                "stop it there, or remove the file when that place is gone"
            )
        return endpoints

    @staticmethod
    def _write(path: Path, endpoints: list[Endpoint]) -> None:
        whole = path.with_suffix(".tmp")
        with about_file(path):
            whole.write_bytes(_ENDPOINTS.dump_json(endpoints, indent=1))
            whole.rename(path)


def _stop(endpoint: Endpoint) -> None:
    """End the server and remove its files from this machine.

    Raises:
        TemporaryError: it would not end.
        UserError: it is another user's.
    """
    if endpoint.alive:
        try:
            os.kill(endpoint.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except PermissionError as e:
            raise UserError(f"{endpoint.name}: pid {endpoint.pid} is another user's; end it as that user") from e
        wait(
            lambda: not endpoint.alive, what=f"{endpoint.name}: server with pid {endpoint.pid} ends", timeout_s=_STOP_S
        )
    shutil.rmtree(endpoint.folder, ignore_errors=True)
