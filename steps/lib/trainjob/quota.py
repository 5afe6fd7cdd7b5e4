"""How many whole nodes a queue can give. Pure.

nominal       the ClusterQueue's own quota of GPUs, over its flavors
borrowable    what the other queues of its cohort lend, up to its borrowing limit
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from steps.lib.errors import UserError
from steps.lib.kube import Object
from steps.lib.trainjob.build import GPU


@dataclass(frozen=True, kw_only=True)
class Quota:
    """GPUs that one queue can give at this moment, running work not subtracted."""

    cluster_queue: str
    nominal: int
    borrowable: int

    @property
    def total(self) -> int:
        """The largest job that can be admitted."""
        return self.nominal + self.borrowable


def quota_of(name: str, cluster_queues: Iterable[Object]) -> Quota:
    """The quota of the ClusterQueue `name` among all of them.

    Raises:
        UserError: there is no such queue, or it does not cover GPUs.
    """
    queues = {queue["metadata"]["name"]: queue for queue in cluster_queues}
    if name not in queues:
        raise UserError(f"ClusterQueue {name}: not on the gpu cluster; it has {', '.join(sorted(queues)) or 'none'}")
    mine = _gpu_quotas(queues[name])
    if not mine:
        raise UserError(f"ClusterQueue {name}: does not cover {GPU}; ask the platform's operators")
    cohort = queues[name]["spec"].get("cohortName", "")
    lent = 0
    for other, queue in queues.items():
        if cohort and other != name and queue["spec"].get("cohortName", "") == cohort:
            lent += sum(
                min(_gpus(q["nominalQuota"]), _gpus(q.get("lendingLimit", q["nominalQuota"])))
                for q in _gpu_quotas(queue)
            )
    limits = [_gpus(q["borrowingLimit"]) for q in mine if "borrowingLimit" in q]
    if len(limits) == len(mine):
        lent = min(lent, sum(limits))
    return Quota(cluster_queue=name, nominal=sum(_gpus(q["nominalQuota"]) for q in mine), borrowable=lent)


def choose_nodes(sizes: Sequence[int], gpus_per_node: int, quota: Quota | None, limit: int = 0) -> int:
    """The largest admissible number of nodes that the quota holds; the first when none does but one will.

    Args:
        quota: None when it may not be read: then the first.
        limit: GPUs of the largest capacity profile; 0: unknown.

    Raises:
        UserError: not even the smallest can ever be admitted.
    """
    if quota is None:
        return sizes[0]
    fitting = [nodes for nodes in sizes if nodes * gpus_per_node <= quota.total]
    if fitting:
        return max(fitting)
    smallest = min(sizes)
    largest_ever = max(quota.total, limit)
    if smallest * gpus_per_node > largest_ever:
        raise UserError(
            f"scale.nodes: {smallest} nodes are {smallest * gpus_per_node} GPUs, ClusterQueue {quota.cluster_queue} "
            f"can give {largest_ever} at most; name a smaller size in the recipe"
        )
    return next(nodes for nodes in sizes if nodes * gpus_per_node <= largest_ever)


def _gpu_quotas(queue: Object) -> list[dict[str, Any]]:
    return [
        resource
        for group in queue["spec"].get("resourceGroups", [])
        for flavor in group["flavors"]
        for resource in flavor["resources"]
        if resource["name"] == GPU
    ]


def _gpus(quantity: str | int) -> int:
    """A Kubernetes quantity of whole things: 48, "48", "1k"."""
    text = str(quantity)
    return int(text[:-1]) * 1000 if text.endswith("k") else int(text)
