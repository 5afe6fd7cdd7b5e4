"""The runs that Argo runs: look at them on the cluster, come back to them, cancel them, run them again."""

import tempfile
import time
from pathlib import Path

from pipelines.clusters import compute_cluster
from pipelines.engine.argo.follow import Follower
from pipelines.engine.argo.submit import ENDED, cancel as cancel_workflow, phase_of
from pipelines.engine.events import Outcome
from pipelines.engine.workflow import parse_workflow
from pipelines.execute import execute_on_argo, follow_on_argo
from pipelines.run_state import RunState, new_state
from pipelines.runs_store import Run, load_document
from pipelines.settings.site import Site
from pipelines.view import View
from steps.lib.errors import TripodError
from steps.lib.kube import Cluster
from steps.lib.kube.kinds import WORKFLOW
from steps.lib.store import Store
from steps.lib.wait import wait

_CANCEL_MARGIN_S = 60.0


def site_of(run: Run) -> Site:
    """The site that a run was submitted to, as its record has it."""
    return Site.model_validate(
        {name: run.info.settings[name] for name in Site.model_fields if name in run.info.settings}
    )


def follow(store: Store, run: Run, view: View) -> Outcome | None:
    """Come back to a run and follow it to its end; None after Ctrl-C."""
    site = site_of(run)
    with compute_cluster(site) as cluster:
        return follow_on_argo(
            _fresh(store, run), cluster=cluster, namespace=site.argo.namespace, store=store, view=view
        )


def look(store: Store, run: Run) -> RunState:
    """The state of a run as the cluster has it now.

    Raises:
        UserError: the workflow is gone, or the cluster refuses us.
        TemporaryError: the cluster is away.
    """
    site, state = site_of(run), _fresh(store, run)
    with compute_cluster(site) as cluster, tempfile.TemporaryDirectory() as scratch:
        follower = Follower(cluster, site.argo.namespace, state.run_id, scratch=Path(scratch), listeners=[state.apply])
        workflow = follower.look()
        if phase_of(workflow) in ENDED:
            state.end(follower.outcome(workflow), time.time())
        follower.close()
    return state


def phases(run: Run) -> tuple[dict[str, str], str]:
    """Phase of every workflow on the cluster of `run`, by run id; and why it cannot be known, or ""."""
    site = site_of(run)
    try:
        with compute_cluster(site) as cluster:
            found = cluster.list(WORKFLOW, site.argo.namespace)
            return {workflow["metadata"]["name"]: phase_of(workflow) for workflow in found}, ""
    except TripodError as e:
        return {}, str(e)


def cancel(store: Store, run: Run, *, grace_s: float) -> float | None:
    """Cancel a run, its GPU job included. Seconds until it had ended; None when it did not run.

    Raises:
        TemporaryError: it has not ended in time.
    """
    site, run_id = site_of(run), run.info.run_id
    store.put(cancel_mark(run_id), b"")  # tells a launcher that its SIGTERM is a cancel, not a lost pod
    with compute_cluster(site) as cluster:
        if not cancel_workflow(cluster, site.argo.namespace, run_id):
            return None
        return wait(
            lambda: _has_ended(cluster, site.argo.namespace, run_id),
            what=f"run {run_id} ends",
            timeout_s=grace_s + _CANCEL_MARGIN_S,
            every_s=1,
        )


def resume(store: Store, run: Run, view: View) -> Outcome | None:
    """Run it once more under its name; recorded steps are not repeated. None after Ctrl-C."""
    site = site_of(run)
    store.delete([cancel_mark(run.info.run_id)])
    with compute_cluster(site) as cluster:
        return execute_on_argo(
            load_document(store, run.info.run_id),
            cluster=cluster,
            namespace=site.argo.namespace,
            store=store,
            info=run.info,
            view=view,
            again=True,
        )


def cancel_mark(run_id: str) -> str:
    """Key of an object that is there once a person has cancelled the run."""
    return f"runs/{run_id}/cancel"


def _fresh(store: Store, run: Run) -> RunState:
    """A state that has not begun: following tells everything again."""
    state = new_state(parse_workflow(load_document(store, run.info.run_id)), run.state.started)
    state.earlier = run.state.earlier
    return state


def _has_ended(cluster: Cluster, namespace: str, name: str) -> bool:
    workflow = cluster.get(WORKFLOW, namespace, name)
    return workflow is None or phase_of(workflow) in ENDED
