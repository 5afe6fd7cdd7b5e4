"""What serves on the GPU cluster: the cluster's objects are the only record of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from steps.deploy import objects
from steps.lib.kube import SPEC, Cluster, Object
from steps.lib.kube.kinds import DEPLOYMENT, SERVICE

_OURS = {"app.kubernetes.io/managed-by": "tripod"}


@dataclass(frozen=True, kw_only=True)
class Served:
    """One name in service."""

    name: str
    namespace: str
    service: str
    """Name of the Service that users ask."""
    port: int
    model: str
    digest: str
    spec: str
    """Digest of the version that it points at."""
    since: float
    """Seconds since the epoch."""
    replicas: int
    """Wanted; 0 when the version's Deployment is gone."""
    ready: int

    @property
    def url(self) -> str:
        """Of the API, within the cluster."""
        return f"http://{self.service}.{self.namespace}.svc:{self.port}/v1"

    @classmethod
    def of(cls, service: Object, deployment: Object | None) -> Self:
        """From the Service that users ask, and the Deployment that it points at."""
        notes = service["metadata"]["annotations"]
        there = deployment or {}
        return cls(
            name=notes[objects.SERVED],
            namespace=service["metadata"]["namespace"],
            service=service["metadata"]["name"],
            port=service["spec"]["ports"][0]["port"],
            model=notes[objects.MODEL],
            digest=notes[objects.DIGEST],
            spec=notes[SPEC],
            since=float(notes.get(objects.SINCE, 0)),
            replicas=there.get("spec", {}).get("replicas", 0),
            ready=there.get("status", {}).get("readyReplicas", 0),
        )


def find_all(cluster: Cluster, namespace: str, name: str = "") -> list[Served]:
    """What is in service in a namespace, by name; with `name`, that one alone."""
    labels = _OURS | ({objects.NAME: objects.name_label(name)} if name else {})
    services = [s for s in cluster.list(SERVICE, namespace, labels=labels) if objects.SINCE in _notes(s)]
    deployments = {_version(d): d for d in cluster.list(DEPLOYMENT, namespace, labels=labels)}
    found = [Served.of(service, deployments.get(_version(service))) for service in services]
    return sorted(found, key=lambda served: served.name)


def lease_key(namespace: str, name: str) -> str:
    """Of the lease that whoever changes what serves `name` holds."""
    return f"serving/{namespace}/{objects.service_name(name)}.lease.json"


def in_service(cluster: Cluster, namespace: str, name: str) -> str:
    """Id of the version that users of `name` are answered by; "" when none does."""
    service = cluster.get(SERVICE, namespace, objects.service_name(name))
    return _version(service) if service else ""


def remove(cluster: Cluster, namespace: str, name: str, *, but: Sequence[str] = ()) -> int:
    """Remove what serves `name`, or was to. Returns how many objects that were.

    Args:
        but: ids of versions that stay, with the Service that users ask when it points at one of them.
    """
    labels = _OURS | {objects.NAME: objects.name_label(name)}
    removed = 0
    for kind in (SERVICE, DEPLOYMENT):  # users first: who is still answered is not cut off
        for thing in cluster.list(kind, namespace, labels=labels):
            meta = thing["metadata"]
            if _version(thing) not in but:
                removed += cluster.delete(kind, namespace, meta["name"], uid=meta["uid"])
    return removed


def _version(thing: Object) -> str:
    return str(thing["metadata"]["labels"].get(objects.VERSION, ""))


def _notes(thing: Object) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}
