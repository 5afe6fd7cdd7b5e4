"""`lab-down` leaves nothing. It ends the lab, so `make e2e` runs it last, by itself: `pytest -m lab_down`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab_down
_NAMES = ("lab-compute", "lab-gpu", "tripod-lab", "tripod/lab/run")
"""What cgroups, mounts, sockets and arguments of the lab have in their names."""


def test_down_leaves_nothing(lab: None) -> None:
    from tests.lab.places import RUN

    subprocess.run([sys.executable, "-m", "tests.lab", "down"], check=True)
    assert [line for line in Path("/proc/mounts").read_text().splitlines() if _is_ours(line)] == []
    assert [path for path in _below("/sys/fs/cgroup", 2) if _is_ours(path)] == []
    assert [path for path in _below("/run", 2) if _is_ours(path) or "containerd" in path or "netns/" in path] == []
    assert (
        sorted(link.name for link in Path("/sys/class/net").iterdir() if link.name in ("lab0", "vcompute", "vgpu"))
        == []
    )
    assert _processes() == []
    assert not RUN.exists()


def _is_ours(text: str) -> bool:
    return any(name in text for name in _NAMES)


def _below(folder: str, depth: int) -> list[str]:
    found = subprocess.run(["find", folder, "-maxdepth", str(depth)], capture_output=True, text=True, check=False)
    return found.stdout.splitlines()


def _processes() -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    ended = "ps -eo", "<defunct>"  # what has ended and is not yet collected by init is no process of ours
    return [line for line in listed.stdout.splitlines() if _is_program(line) and not any(e in line for e in ended)]


def _is_program(line: str) -> bool:
    program = Path(line.split()[0]).name if line.split() else ""
    return _is_ours(line) or program in (
        "kube-apiserver",
        "etcd",
        "kubelet",
        "kwok",
        "coredns",
        "containerd-shim-runc-v2",
    )
