"""What serves at a site, and how to end it: processes of this machine, or Deployments of the GPU cluster."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipelines.clusters import gpu_cluster
from pipelines.settings.load import open_site_store
from pipelines.settings.site import Site
from steps.deploy import kept
from steps.lib.completions import Client
from steps.lib.errors import UserError
from steps.lib.kube import Cluster
from steps.lib.lease import Lease
from steps.lib.serving import Endpoint, Serving


@dataclass(frozen=True, kw_only=True)
class Row:
    """One server, for people and for programs."""

    name: str
    lines: list[str]
    as_json: dict[str, Any]


class Servers(ABC):
    """The servers of a site."""

    where: str
    """For messages: `on this machine`."""

    @abstractmethod
    def all(self) -> tuple[list[Row], list[str]]:
        """All of them; and what is wrong with the records of others."""

    @abstractmethod
    def stop(self, name: str) -> str:
        """End one; says what was ended.

        Raises:
            UserError: there is none of that name.
        """

    def _unknown(self, name: str) -> UserError:
        names = ", ".join(row.name for row in self.all()[0]) or "none"
        return UserError(f"NAME: got {name!r}, which does not serve {self.where}; those that do: {names}")


def servers(site: Site) -> Servers:
    """Those of a site."""
    return _OnCluster(site) if site.inference.target == "kubernetes" else _Here(site)


class _Here(Servers):
    where = "on this machine"

    def __init__(self, site: Site):
        self._serving = Serving(os.environ, open_site_store(site).uri)

    def all(self) -> tuple[list[Row], list[str]]:
        """See Servers."""
        endpoints, problems = self._serving.all()
        return [self._row(endpoint) for endpoint in endpoints], problems

    def stop(self, name: str) -> str:
        """See Servers."""
        with self._serving.lock(name):
            endpoint = self._serving.settle(name)
            if endpoint is None:
                raise self._unknown(name)
            self._serving.end(endpoint)
        return f"{name}: ended, pid {endpoint.pid}"

    @staticmethod
    def _row(endpoint: Endpoint) -> Row:
        healthy = Client(endpoint.base).healthy()
        lines = [
            f"{endpoint.name}  {endpoint.url}  {'healthy' if healthy else 'does not answer'}",
            f"  model   {endpoint.model}  digest {endpoint.digest[:16]}",
            f"  since   {_time(endpoint.since)}  pid {endpoint.pid}",
            f"  log     {endpoint.log}",
        ]
        as_json = {**endpoint.model_dump(mode="json"), "url": endpoint.url, "healthy": healthy}
        return Row(name=endpoint.name, lines=lines, as_json=as_json)


class _OnCluster(Servers):
    def __init__(self, site: Site):
        self._site, self._namespace = site, site.gpu.namespace
        self.where = f"in namespace {self._namespace} of the gpu cluster"

    def all(self) -> tuple[list[Row], list[str]]:
        """See Servers."""
        with self._cluster() as cluster:
            return [self._row(served) for served in kept.find_all(cluster, self._namespace)], []

    def stop(self, name: str) -> str:
        """See Servers. What was begun under that name and is not in service yet goes too."""
        key = kept.lease_key(self._namespace, name)
        with self._cluster() as cluster, Lease(open_site_store(self._site), key, run_id="deploy-stop"):
            removed = kept.remove(cluster, self._namespace, name)
        if not removed:
            raise self._unknown(name)
        return f"{name}: ended; its pods finish the requests that they have"

    @contextmanager
    def _cluster(self) -> Iterator[Cluster]:
        with gpu_cluster(self._site) or _nowhere() as cluster:
            yield cluster

    @staticmethod
    def _row(served: kept.Served) -> Row:
        lines = [
            f"{served.name}  {served.url}  {served.ready} of {served.replicas} ready",
            f"  model   {served.model}  digest {served.digest[:16]}",
            f"  since   {_time(served.since)}",
            f"  ask     kubectl -n {served.namespace} port-forward service/{served.service} {served.port}",
        ]
        as_json = {**served.__dict__, "url": served.url, "healthy": served.ready > 0}
        return Row(name=served.name, lines=lines, as_json=as_json)


def gpu_kubeconfig(site: Site) -> str:
    """The kubeconfig by which this machine reaches the GPU cluster. Raises UserError when none is given."""
    return site.gpu.kubeconfig or os.environ.get("TRIPOD_GPU_KUBECONFIG") or _nowhere()


def _nowhere() -> Any:
    raise UserError(
        "gpu.kubeconfig: empty, and $TRIPOD_GPU_KUBECONFIG is not set; name a kubeconfig of the GPU cluster"
    )


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
