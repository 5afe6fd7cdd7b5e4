"""The launcher as team-a's pod on compute would be: the team's token, the team's place; and a wire that can be cut."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

from tests.lab.cluster import kubectl
from tests.lab.places import COMPUTE, GPU

TEAM = "team-a"


class Wire:
    """TCP from a port of this machine to gpu's API server."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.is_cut = False
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """No byte passes any more, and nobody is let in."""
        self.is_cut = True
        for end in self.open:
            end.close()
        self.open.clear()

    def mend(self) -> None:
        """New connections pass again."""
        self.is_cut = False

    def close(self) -> None:
        """For good."""
        self.listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            if self.is_cut:
                near.close()
                continue
            far = socket.create_connection((GPU.ip, 6443))
            self.open += [near, far]
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=_pump, args=(a, b), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    finally:
        for end in (source, target):
            end.close()


def token() -> str:
    """Of the account that launchers run as, made out for gpu."""
    account = ("tripod-workflow", "--audience", "gpu-cluster", "--duration", "2h")
    return kubectl(COMPUTE, "-n", TEAM, "create", "token", *account).strip()


def kubeconfig(folder: Path, port: int) -> Path:
    """For gpu through a Wire, as team-a's launcher."""
    cluster = {
        "server": f"https://127.0.0.1:{port}",
        "tls-server-name": GPU.ip,
        "certificate-authority": str(GPU.pki / "ca.crt"),
    }
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "gpu",
        "clusters": [{"name": "gpu", "cluster": cluster}],
        "users": [{"name": "launcher", "user": {"token": token()}}],
        "contexts": [{"name": "gpu", "context": {"cluster": "gpu", "user": "launcher"}}],
    }
    path = folder / "gpu.json"
    path.write_text(json.dumps(config))
    return path


def place(image: str, *, queue: str = "real", nodes: int = 2, nproc: int = 1) -> dict[str, str]:
    """Settings of the place, without how it is reached."""
    return {
        "TRIPOD_TRAIN_TARGET": "kubernetes",
        "TRIPOD_GPU_NAMESPACE": TEAM,
        "TRIPOD_GPU_QUEUE": queue,
        "TRIPOD_GPU_NODES": str(nodes),
        "TRIPOD_NPROC": str(nproc),
        "TRIPOD_IMAGE_TRAIN": image,
        "TRIPOD_GRACE_S": "60",
    }


def directly(folder: Path) -> dict[str, str]:
    """How a pod of compute reaches gpu: address, CA, projected token."""
    (folder / "token").write_text(token())
    return {
        "TRIPOD_GPU_SERVER": GPU.server,
        "TRIPOD_GPU_CA": str(GPU.pki / "ca.crt"),
        "TRIPOD_GPU_TOKEN": str(folder / "token"),
    }
