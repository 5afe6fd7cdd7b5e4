"""What serves on the GPU cluster: the cluster's objects are the only record of it."""

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


def remove(cluster: Cluster, namespace: str, name: str, *, but: str = "") -> int:
    """Remove what serves `name`; how many versions that were.

    Args:
        but: id of a version that stays, with the Service that users ask.
    """
    labels = _OURS | {objects.NAME: objects.name_label(name)}
    for service in cluster.list(SERVICE, namespace, labels=labels):
        if _version(service) != but:
            cluster.delete(SERVICE, namespace, service["metadata"]["name"], uid=service["metadata"]["uid"])
    old = [d for d in cluster.list(DEPLOYMENT, namespace, labels=labels) if _version(d) != but]
    for deployment in old:
        cluster.delete(DEPLOYMENT, namespace, deployment["metadata"]["name"], uid=deployment["metadata"]["uid"])
    return len(old)


def remove_version(cluster: Cluster, spec: "objects.ServeSpec") -> None:
    """Remove one version, which is not in service."""
    for kind in (SERVICE, DEPLOYMENT):
        cluster.delete(kind, spec.namespace, spec.version_name)


def _version(thing: Object) -> str:
    return str(thing["metadata"]["labels"].get(objects.VERSION, ""))


def _notes(thing: Object) -> dict[str, str]:
    return thing["metadata"].get("annotations") or {}
