"""What a training will meet in its queue on the GPU cluster, asked before it is submitted."""

from collections.abc import Sequence

from pipelines.clusters import gpu_cluster
from pipelines.settings.load import store_uri
from pipelines.settings.site import Site
from steps.lib.errors import TemporaryError
from steps.lib.kube import Object
from steps.lib.kube.kinds import CLUSTER_QUEUE
from steps.lib.trainjob import preflight
from steps.lib.trainjob.build import GPU
from steps.lib.trainjob.place import read_place


def queue_lines(nodes: Sequence[int], site: Site) -> list[str]:
    """Quota, what of it is free, and who waits; a line that says so when the cluster cannot be asked.

    Args:
        nodes: numbers of nodes that the recipe may run at.

    Raises:
        UserError: the training could never be admitted; says why.
    """
    if site.gang.target != "kubernetes":
        return []
    cluster = gpu_cluster(site)
    if cluster is None:
        return ["queue not asked: neither gpu.kubeconfig nor $TRIPOD_GPU_KUBECONFIG is set; the launcher asks it"]
    place = read_place(site.step_env(store_uri(site), nodes))
    with cluster:
        try:
            chosen = preflight.check(cluster, place)
            quota = preflight.find_quota(cluster, place)
            if quota is None:
                return [f"queue {place.queue} may not be read by you; the launcher asks it"]
            queue = cluster.get(CLUSTER_QUEUE, "", quota.cluster_queue) or {}
        except TemporaryError as e:
            return [f"queue not asked: {e}; the launcher asks it"]
    used, waiting = _used(queue), int(queue.get("status", {}).get("pendingWorkloads", 0))
    asks = chosen * place.gpus_per_node
    free = max(0, quota.nominal - used)
    more = f", {quota.borrowable} more may be borrowed" if quota.borrowable else ""
    turn = "starts at once" if asks <= free and not waiting else f"position {waiting + 1}"
    return [
        f"queue {place.queue}: {free} of {quota.nominal} GPUs are free{more}; this training asks for {asks}, {turn}"
    ]


def _used(queue: Object) -> int:
    """GPUs that admitted work holds."""
    return sum(
        int(resource.get("total", 0))
        for flavor in queue.get("status", {}).get("flavorsReservation") or []
        for resource in flavor["resources"]
        if resource["name"] == GPU
    )
