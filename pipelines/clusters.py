"""How this machine reaches the site's clusters."""

import os
from pathlib import Path

from pipelines.settings.site import Site
from steps.lib.kube import Cluster, open_cluster


def compute_cluster(site: Site) -> Cluster:
    """The cluster that runs workflows, as a person reaches it. Raises UserError when the kubeconfig is wrong."""
    given = site.argo.kubeconfig or os.environ.get("TRIPOD_COMPUTE_KUBECONFIG") or os.environ.get("KUBECONFIG")
    return open_cluster(
        "compute", kubeconfig=given or str(Path.home() / ".kube/config"), context=site.argo.context, retry_s=30
    )
