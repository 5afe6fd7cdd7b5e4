"""Finished TrainJobs that no launcher came back for: removed once JobSet's own time for them is over.

A training whose launcher was gone when it ended is found by its record the next time, and nobody asks
for the TrainJob any more. Its pods and their logs stay as long as the runtime says
(ttlSecondsAfterFinished); after that the TrainJob is an empty shell.
"""

from steps.lib.errors import Exit
from steps.lib.kube import Cluster
from steps.lib.kube.kinds import JOBSET, TRAINJOB
from steps.lib.store import Store
from steps.lib.trainjob import attempts
from steps.lib.trainjob.build import ATTEMPT, KEY, RUN
from steps.lib.trainjob.objects import is_true


def sweep(cluster: Cluster, store: Store, namespace: str) -> list[str]:
    """Remove the shells in a namespace, and note how they ended. Returns their names."""
    jobs = cluster.list(TRAINJOB, namespace, labels={"app.kubernetes.io/managed-by": "tripod"})
    swept = []
    for job in jobs:
        meta = job["metadata"]
        failed = is_true(job, "Failed")
        over = failed or is_true(job, "Complete")
        if not over or RUN not in meta["labels"] or cluster.get(JOBSET, namespace, meta["name"]):
            continue
        code, why = (Exit.TEMPORARY, str(failed["message"])) if failed else (Exit.DONE, "")
        attempts.end(store, meta["labels"][KEY], int(meta["labels"][ATTEMPT]), code=code, why=why)
        cluster.delete(TRAINJOB, namespace, meta["name"], uid=meta["uid"])
        swept.append(meta["name"])
    return swept
