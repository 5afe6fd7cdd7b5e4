"""The runs that Argo runs: look at them on the cluster, come back to them, cancel them, run them again."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pydantic import ValidationError

from pipelines.clusters import gpu_cluster, open_workflows
from pipelines.engine.argo.follow import GoneError
from pipelines.engine.argo.status import ENDED, phase_of
from pipelines.engine.argo.submit import cancel as cancel_workflow
from pipelines.engine.events import Outcome
from pipelines.engine.workflow import parse_workflow
from pipelines.execute_argo import catch_up, execute_on_argo, follow_on_argo
from pipelines.run_state import RunState
from pipelines.runs_store import Run, load_document
from pipelines.settings.site import ArgoSettings, Site
from pipelines.view import Silence, View
from steps.lib.errors import TripodError, UserError
from steps.lib.store import Store
from steps.lib.trainjob.cancel import ask_cancel, cancel_train, left_over
from steps.lib.wait import wait
from steps.runner import first_problem

_CANCEL_MARGIN_S = 60.0
Say = Callable[[str], None]


def site_of(run: Run, here: Site) -> Site:
    """The site that a run was submitted to, as its record has it, reached as this machine reaches its clusters.

    Args:
        here: the site of this command: kubeconfigs, contexts, CA files and the Argo server are its own, whoever
            submitted the run. A token must not go to an address that a record in the store names.

    Raises:
        UserError: another version of this program has recorded it.
    """
    settings = {name: run.info.settings[name] for name in Site.model_fields if name in run.info.settings}
    try:
        site = Site.model_validate(settings)
    except ValidationError as e:
        raise UserError(
            f"run {run.info.run_id}: its record has settings of another version of this program: {first_problem(e)}; "
            "look at it with the version that submitted it"
        ) from e
    argo = {name: getattr(here.argo, name) for name in ("kubeconfig", "context", "server", "ca_bundle")}
    gpu = {name: getattr(here.gpu, name) for name in ("kubeconfig", "context")}
    return site.model_copy(
        update={"argo": site.argo.model_copy(update=argo), "gpu": site.gpu.model_copy(update=gpu)},
    )


def follow(store: Store, here: Site, run: Run, view: View, leave: threading.Event | None = None) -> Outcome | None:
    """Come back to a run and follow it to its end, from where its record stands; None after Ctrl-C.

    Raises:
        GoneError: its workflow is gone.
    """
    workflow = parse_workflow(load_document(store, run.info.run_id))
    with open_workflows(site_of(run, here)) as workflows:
        return follow_on_argo(run.state, workflow, workflows=workflows, store=store, view=view, leave=leave)


def look(store: Store, here: Site, run: Run, say: Say) -> RunState:
    """The state of a run as the cluster has it now; its record and logs are brought up to date.

    When the cluster cannot be asked, it is as it was recorded, with a word about it.
    """
    if run.state.phase != "Running":
        return run.state
    workflow = parse_workflow(load_document(store, run.info.run_id))
    try:
        with open_workflows(site_of(run, here)) as workflows:
            catch_up(run.state, workflow, workflows=workflows, store=store)
    except GoneError as e:
        run.state.lose(f"lost: {e}")
    except TripodError as e:
        say(f"warning: {e}; what follows was recorded before")
    return run.state


@contextmanager
def following(store: Store, here: Site, run: Run) -> Iterator[Callable[[], None]]:
    """Keep the record and the logs of a run up to date while the block lasts.

    Yields:
        Raises what has ended the following, if anything did.
    """
    failed: list[TripodError] = []
    leave = threading.Event()

    def work() -> None:
        try:
            follow(store, here, run, Silence(), leave)
        except TripodError as e:
            failed.append(e)

    def check() -> None:
        if failed:
            raise failed[0]

    thread = threading.Thread(target=work, name="follow", daemon=True)
    thread.start()
    try:
        yield check
    finally:  # its recorder has a thread that the interpreter would wait for
        leave.set()
        thread.join()


def ask_clusters(here: Site, runs: Sequence[Run], say: Say) -> None:
    """Bring the phases of runs up to date that nobody has followed to their end; each cluster is asked once."""
    asked: dict[ArgoSettings, dict[str, str] | None] = {}
    for run in runs:
        if not run.on_argo or run.state.phase != "Running":
            continue
        try:
            site = site_of(run, here)
            if site.argo not in asked:
                asked[site.argo] = None
                with open_workflows(site) as workflows:
                    asked[site.argo] = {found["metadata"]["name"]: phase_of(found) for found in workflows.list()}
        except TripodError as e:
            say(f"warning: {e}; states of runs there are as recorded")
            continue
        if (phases := asked[site.argo]) is None:
            continue
        if run.info.run_id not in phases:
            run.state.lose("lost: its workflow is gone from the cluster")
        elif (phase := phases[run.info.run_id]) in ENDED:
            run.state.phase = phase  # type: ignore[assignment]  # one of a run that has ended


def cancel(store: Store, here: Site, run: Run, *, grace_s: float, say: Say) -> float | None:
    """Cancel a run, its GPU job included. Seconds until it had ended; None when it did not run.

    Raises:
        TemporaryError: it has not ended in time.
    """
    site, run_id = site_of(run, here), run.info.run_id
    ask_cancel(store, run_id)
    with open_workflows(site) as workflows:
        ran = cancel_workflow(workflows, run_id)
        _cancel_training(store, site, run_id, grace_s=grace_s, say=say)
        if not ran:
            return None

        def has_ended() -> bool:
            workflow = workflows.get(run_id)
            return workflow is None or phase_of(workflow) in ENDED

        what, timeout_s = f"run {run_id} ends", grace_s + _CANCEL_MARGIN_S
        return wait(has_ended, what=what, timeout_s=timeout_s, every_s=1, say=say)


def _cancel_training(store: Store, site: Site, run_id: str, *, grace_s: float, say: Say) -> None:
    """Stop the run's TrainJobs: its launcher does the same, if it is alive to do so."""
    if site.gang.target != "kubernetes":
        return
    cluster = gpu_cluster(site)
    if cluster is None:
        say("the GPU cluster is left to the run's launcher: neither gpu.kubeconfig nor $TRIPOD_GPU_KUBECONFIG is set")
        return
    with cluster:
        cancel_train(cluster, store, namespace=site.gpu.namespace, run_id=run_id, grace_s=grace_s, say=say)


def orphans(here: Site, run: Run) -> list[str]:
    """A warning for each TrainJob that a run which has ended has left on the GPU cluster."""
    if run.state.phase == "Running":
        return []
    run_id = run.info.run_id
    try:
        site = site_of(run, here)
        if site.gang.target != "kubernetes" or (cluster := gpu_cluster(site)) is None:
            return []
        with cluster:
            left = left_over(cluster, site.gpu.namespace, run_id)
    except TripodError as e:
        return [f"warning: {e}; whether the run has left a job there is not known"]
    return [
        f"warning: its TrainJob {job.name} is still there with {job.num_pods} pods; "
        f"`python -m pipelines.runs cancel {run_id}` stops it"
        for job in left
    ]


def resume(store: Store, here: Site, run: Run, view: View) -> Outcome | None:
    """Run it once more under its name; recorded steps are not repeated. None after Ctrl-C.

    Raises:
        UserError: it runs.
    """
    document = load_document(store, run.info.run_id)
    with open_workflows(site_of(run, here)) as workflows:
        return execute_on_argo(document, workflows=workflows, store=store, info=run.info, view=view)
