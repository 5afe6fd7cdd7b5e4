"""A Kubernetes API server: objects as plain dicts, failures as this product's kinds.

    with open_cluster("gpu", kubeconfig="...") as cluster:
        job = cluster.create(TRAINJOB, {...})
        job = cluster.get(TRAINJOB, "team-a", "name")     None when there is none

A call is repeated while the server is away or overloaded, up to `retry_s`. A create whose reply was lost
finds by the annotation `tripod/spec` that its first try has done the work. The only home of kubernetes and urllib3:

    kinds.py     the kinds that the product touches    access.py   how a server is reached
    cluster.py   the calls
"""

from steps.lib.kube.access import open_cluster
from steps.lib.kube.cluster import SPEC, Cluster, ExistsError, Object, RefusedError, nine_digits
from steps.lib.kube.kinds import Kind

__all__ = ["SPEC", "Cluster", "ExistsError", "Kind", "Object", "RefusedError", "nine_digits", "open_cluster"]
