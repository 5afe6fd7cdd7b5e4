"""Where the lab keeps things, and the addresses of its clusters."""

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("TRIPOD_LAB") or Path.home() / ".cache/tripod/lab")
"""Outlives the lab: programs, manifests, images."""
BIN = Path(os.environ.get("TRIPOD_TOOLS") or Path.home() / ".cache/tripod/bin")
MANIFESTS = CACHE / "manifests"
RUN = CACHE / "run"
"""Of the lab that is up now."""
ENV_FILE = RUN / "env"
"""For shells: kubeconfigs, store, images. It has a secret in it."""
REGISTRY = "registry.lab.internal"
"""Host in the names of all images; it does not exist, every image is imported."""
BRIDGE, GATEWAY = "lab0", "10.88.0.1"
S3_PORT = 7070
S3_ENDPOINT = f"http://{GATEWAY}:{S3_PORT}"
TEAMS = ("team-a", "team-b")


@dataclass(frozen=True)
class Place:
    """Addresses and folders of one cluster."""

    name: str
    number: int

    @property
    def ip(self) -> str:
        """Of its one real node, on the bridge."""
        return f"10.88.0.1{self.number}"

    @property
    def server(self) -> str:
        """URL of its API server."""
        return f"https://{self.ip}:6443"

    @property
    def pods(self) -> str:
        """Addresses of pods."""
        return f"10.10{self.number}.0.0/16"

    @property
    def services(self) -> str:
        """Addresses of services."""
        return f"10.11{self.number}.0.0/16"

    @property
    def node(self) -> str:
        """Name of its one real node."""
        return f"{self.name}-0"

    @property
    def folder(self) -> Path:
        """Of this life of the cluster."""
        return RUN / self.name

    @property
    def netns(self) -> Path:
        """File that the network namespace is mounted on."""
        return self.folder / "netns"

    @property
    def pki(self) -> Path:
        """Keys, certificates, kubeconfigs."""
        return self.folder / "pki"

    @property
    def kubeconfig(self) -> Path:
        """Of the cluster's administrator."""
        return self.pki / "admin.kubeconfig"

    @property
    def containerd_root(self) -> Path:
        """Images stay in it when the lab is down: importing a large one takes a minute."""
        return CACHE / "containerd" / self.name

    @property
    def containerd_state(self) -> Path:
        """Sockets and mounts of running containers."""
        return Path(f"/run/tripod-lab-{self.name}")

    @property
    def containerd_socket(self) -> Path:
        """The CRI's address."""
        return self.containerd_state / "containerd.sock"


COMPUTE, GPU = Place("compute", 1), Place("gpu", 2)
CLUSTERS = (COMPUTE, GPU)
