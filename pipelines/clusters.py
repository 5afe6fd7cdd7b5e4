"""How this machine reaches the site's clusters."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.engine.argo.workflows import KubernetesWorkflows, Workflows
from pipelines.settings.site import Site
from steps.lib.kube import Cluster, open_cluster

_RETRY_S = 30


def compute_cluster(site: Site) -> Cluster:
    """The cluster that runs workflows, as a person reaches it. Raises UserError when the kubeconfig is wrong."""
    given = site.argo.kubeconfig or os.environ.get("TRIPOD_COMPUTE_KUBECONFIG") or os.environ.get("KUBECONFIG")
    return open_cluster(
        "compute", kubeconfig=given or str(Path.home() / ".kube/config"), context=site.argo.context, retry_s=_RETRY_S
    )


def gpu_cluster(site: Site) -> Cluster | None:
    """The cluster that trains and serves, as a person reaches it; None where no kubeconfig for it is given."""
    given = site.gpu.kubeconfig or os.environ.get("TRIPOD_GPU_KUBECONFIG")
    return open_cluster("gpu", kubeconfig=given, context=site.gpu.context, retry_s=_RETRY_S) if given else None


@contextmanager
def open_workflows(site: Site) -> Iterator[Workflows]:
    """The site's Workflows: through its Argo server when it names one, else through the Kubernetes API.

    Raises:
        UserError: the kubeconfig is wrong, or there is no token for the Argo server.
    """
    workflows: Workflows
    if site.argo.server:
        from pipelines.engine.argo.server import ServerWorkflows

        workflows = ServerWorkflows(
            site.argo.server,
            namespace=site.argo.namespace,
            token=os.environ.get("ARGO_TOKEN", ""),
            ca_bundle=site.argo.ca_bundle,
            retry_s=_RETRY_S,
        )
    else:
        workflows = KubernetesWorkflows(compute_cluster(site), site.argo.namespace)
    try:
        yield workflows
    finally:
        workflows.close()
