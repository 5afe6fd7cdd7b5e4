"""A Kubernetes API server: objects as plain dicts, failures as this product's kinds.

    with open_cluster("gpu", kubeconfig="...") as cluster:
        job = cluster.create(TRAINJOB, {...})
        job = cluster.get(TRAINJOB, "team-a", "name")     None when there is none

A call is repeated while the server is away or overloaded, up to `retry_s`. A create whose reply was lost
finds by the annotation `tripod/spec` that its first try has done the work. The only home of kubernetes and urllib3:

    kinds.py     the kinds that the product touches
    access.py    how a server is reached
    cluster.py   what can be done with objects
    wire.py      JSON over HTTP
    waits.py     why a pod does not start
"""

from steps.lib.kube.access import open_cluster, open_wire
from steps.lib.kube.cluster import SPEC, Cluster, log_line, same_spec, seconds
from steps.lib.kube.kinds import Kind
from steps.lib.kube.wire import ExistsError, Object, RefusedError, Wire

__all__ = [
    "SPEC",
    "Cluster",
    "ExistsError",
    "Kind",
    "Object",
    "RefusedError",
    "Wire",
    "log_line",
    "open_cluster",
    "open_wire",
    "same_spec",
    "seconds",
]
