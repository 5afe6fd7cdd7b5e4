"""The lab's own tests: `make e2e` brings the lab up and runs them; they are not part of `make test`."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.lab import images, objects
from tests.lab.cluster import kubectl
from tests.lab.places import CLUSTERS, COMPUTE, GPU, Place
from tests.lab.processes import wait_for
from tests.lab.status import is_up

Get = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def lab() -> None:
    """Both clusters run."""
    for place in CLUSTERS:
        if not is_up(place):
            pytest.fail(f"cluster {place.name} is not up; run `make lab-up`", pytrace=False)


@pytest.fixture(scope="session")
def probe(lab: None) -> dict[Place, str]:
    """The image of tests/lab/probe in each cluster, by digest."""
    archive = images.of_program("probe", "1")
    return {place: images.load_by_digest(place, archive, "probe") for place in CLUSTERS}


@pytest.fixture(scope="session")
def namespace(probe: dict[Place, str]) -> Iterator[str]:
    """A namespace on both clusters, with queues `lab-real` and `lab-fake` on gpu and a runtime; removed afterwards."""
    for place in CLUSTERS:
        _apply(place, objects.namespace())
    queues = [*objects.queue("lab-real", "real", 32), *objects.queue("lab-fake", "training", 96)]
    _apply(GPU, *queues, objects.runtime(probe[GPU]))
    yield objects.NAMESPACE
    kubectl(GPU, "delete", "namespace", objects.NAMESPACE, "--timeout=60s")
    kubectl(GPU, "delete", "clusterqueue", "lab-real", "lab-fake", "--timeout=60s")
    kubectl(COMPUTE, "delete", "namespace", objects.NAMESPACE, "--timeout=60s")


def _apply(place: Place, *items: dict[str, Any]) -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
    kubectl(place, "apply", "--server-side", "-f", "-", stdin=text)


def get(place: Place, *words: str) -> dict[str, Any]:
    """What kubectl gets, as JSON; {} when there is no such object."""
    text = kubectl(place, "get", *words, "-o", "json", "--ignore-not-found")
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def items(place: Place, *words: str) -> list[dict[str, Any]]:
    """A list that kubectl gets."""
    found: list[dict[str, Any]] = get(place, *words).get("items", [])
    return found


def submit(place: Place, item: dict[str, Any]) -> None:
    """Create it anew."""
    meta = item["metadata"]
    kubectl(
        place,
        "delete",
        item["kind"].lower(),
        meta["name"],
        "-n",
        meta["namespace"],
        "--ignore-not-found",
        "--timeout=60s",
    )
    kubectl(place, "create", "-f", "-", stdin=json.dumps(item))


def until(done: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Wait for a condition."""
    wait_for(done, what, seconds, every_s=1)
