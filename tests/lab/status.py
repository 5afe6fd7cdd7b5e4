"""What of the lab runs, its versions and its memory, in a few lines."""

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.lab import remains, storage
from tests.lab.cluster import PROGRAMS, kubectl, running
from tests.lab.places import CLUSTERS, ENV_FILE, S3_ENDPOINT, Place
from tests.lab.processes import is_alive, pid_of
from tests.lab.versions import ARGO, JOBSET, KUBERNETES, KUEUE, KWOK, TRAINER, VERSITYGW

_WHAT = {
    "compute": {"Argo Workflows": ARGO},
    "gpu": {"Kueue": KUEUE, "Trainer": TRAINER, "JobSet": JOBSET, "KWOK": KWOK},
}


def show() -> None:
    """Print it."""
    for place in CLUSTERS:
        print(f"{place.name:8} {_cluster(place)}")
    pid = pid_of(storage.FOLDER, "versitygw")
    state = f"runs, {_gib([pid]):.1f} GiB of memory" if pid else "down"
    print(f"s3       versitygw {VERSITYGW[1]} {state}; {S3_ENDPOINT}")
    if pid:
        print(f"clients  . {ENV_FILE}")


def _cluster(place: Place) -> str:
    names = running(place)
    if not names:
        return "down"
    down = [name for name in PROGRAMS if name not in names]
    versions = ", ".join(f"{name} {version}" for name, (_, version) in _WHAT[place.name].items())
    missing = f"; DOWN: {', '.join(down)}" if down else ""
    memory = _gib(remains.processes(place))
    return f"Kubernetes {KUBERNETES}, {versions}; {_objects(place)}; {memory:.1f} GiB of memory{missing}"


def _objects(place: Place) -> str:
    text = kubectl(place, "get", "nodes,deployments,pods", "-A", "-o", "json", check=False)
    if not text:
        return "its API server does not answer"
    items = json.loads(text)["items"]
    nodes = [_is_ready(item) for item in items if item["kind"] == "Node"]
    deployments = [bool(item["status"].get("availableReplicas")) for item in items if item["kind"] == "Deployment"]
    num_pods = sum(item["status"].get("phase") == "Running" for item in items if item["kind"] == "Pod")
    return (
        f"{sum(nodes)} of {len(nodes)} nodes ready, {sum(deployments)} of {len(deployments)} controllers available, "
        f"{num_pods} pods run"
    )


def _is_ready(node: dict[str, dict[str, list[dict[str, str]]]]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", []))


def _gib(pids: Iterable[int]) -> float:
    """Memory that ends with these processes: their proportional set size, GiB."""
    kib = 0
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    kib += int(line.split()[1])
    return kib / 2**20


def is_up(place: Place) -> bool:
    """Whether all its programs run."""
    return all(is_alive(place.folder, name) for name in PROGRAMS)
