"""What belongs to a cluster on this machine (processes, mounts, cgroups, files), and the end of it."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.lab.cluster import PROGRAMS
from tests.lab.configs import CGROUPS
from tests.lab.places import Place
from tests.lab.processes import eventually, is_alive, run, stop

_SOCKETS = (Path("/run/containerd/s"), Path("/var/lib/kubelet/device-plugins"))
"""Of the shims of all containerds and of all kubelets of the machine: the paths are fixed in their sources."""


def remove(place: Place) -> None:
    """End everything of the cluster. Its images stay in the cache."""
    if is_alive(place.folder, "containerd"):
        for name in ("kubelet", "proxy", "coredns"):
            stop(place.folder, name)
        _remove_containers(place)
    for name in reversed(PROGRAMS):  # the API server before its etcd, or it hangs for minutes
        stop(place.folder, name)
    for pid in processes(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not list(processes(place)), 10)
    for mount in reversed(mounts(place)):
        run("umount", "-l", mount, check=False)
    if left := mounts(place):
        raise SystemExit(
            f"error: {left[0]}: still mounted; see what uses it (fuser -vm), then run `make lab-down` again"
        )
    for folder in cgroups(place):
        eventually(lambda f=folder: _remove_cgroup(f), 5)  # type: ignore[misc]
    _remove_files(place)


def processes(place: Place) -> Iterator[int]:
    """Pids in the cluster's network namespace (its programs) or in its cgroups (its pods)."""
    namespace = place.netns.stat().st_ino if os.path.ismount(place.netns) else 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or the kernel's
            groups = (folder / "cgroup").read_text()
            if f"/lab-{place.name}/" in groups or (folder / "ns/net").stat().st_ino == namespace:
                yield int(folder.name)


def mounts(place: Place) -> list[str]:
    """Mount points of its containers and pods, in the order of mounting."""
    roots = (f"{place.folder}/", f"{place.containerd_state}/", f"{place.containerd_root}/")
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [path for path in mounted if path.startswith(roots) and path != str(place.netns)]


def cgroups(place: Place) -> list[Path]:
    """Its cgroups, the deepest first."""
    roots = (*CGROUPS.glob(f"lab-{place.name}"), *CGROUPS.glob(f"*/lab-{place.name}"))
    found = [folder for root in roots for folder in (root, *root.glob("**/*/"))]
    return sorted((path for path in found if path.is_dir()), key=lambda path: -len(path.parts))


def left(place: Place) -> list[str]:
    """What is still there of it: processes, mounts, cgroups."""
    pids = [f"process {pid}" for pid in processes(place)]
    return [*pids, *(f"mount {path}" for path in mounts(place)), *(f"cgroup {path}" for path in cgroups(place))]


def _remove_cgroup(folder: Path) -> bool:
    """Whether it is gone: the kernel may still count what has ended in it."""
    with contextlib.suppress(FileNotFoundError):
        try:
            folder.rmdir()
        except OSError:
            return False
    return True


def _remove_containers(place: Place) -> None:
    containers = _ctr(place, "containers", "list", "-q").split()
    for name in containers:
        _ctr(place, "task", "delete", "-f", name)
    for name in containers:
        _ctr(place, "containers", "delete", name)
        for file in Path("/var/lib/cni").glob(f"**/results/*-{name}-*"):
            file.unlink()


def _ctr(place: Place, *words: str) -> str:
    return run("ctr", "--address", place.containerd_socket, "-n", "k8s.io", *words, check=False)


def _remove_files(place: Place) -> None:
    shutil.rmtree(place.containerd_state, ignore_errors=True)
    shutil.rmtree(place.folder / "kubelet", ignore_errors=True)
    for link in Path("/var/log/containers").glob("*"):
        if link.is_symlink() and str(link.readlink()).startswith(f"{place.folder}/"):
            link.unlink()


def remove_sockets() -> None:
    """That nobody listens on. Only once both clusters are gone: the kernel shows a namespace its own sockets only."""
    open_sockets = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
    for folder in _SOCKETS:
        for socket in folder.glob("*"):
            if socket.is_socket() and str(socket) not in open_sockets:
                socket.unlink()
        for empty in (folder, folder.parent):
            with contextlib.suppress(OSError):  # another containerd or kubelet of the machine uses it
                empty.rmdir()
