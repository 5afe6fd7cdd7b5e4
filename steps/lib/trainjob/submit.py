"""The attempt to follow and its TrainJob: adopted where there is one, else created.

attempt.json   TrainJob                                      then
none, ended    (none; one that is left over is removed)      the next attempt, once all pods are gone
not ended      none                                          created under the same name
not ended      ours, same spec                               adopted
not ended      ours, other spec                              refused
not ended      another run's, still at work                  refused: already running
not ended      another run's, ended, its launcher gone       its end is written down, then as above
"""

import time

from steps.lib.errors import TemporaryError, UserError
from steps.lib.kube import SPEC, ExistsError, Object
from steps.lib.kube.kinds import TRAINJOB
from steps.lib.lease import STALE_S, HeldError, holder_of
from steps.lib.trainjob import attempts, preflight
from steps.lib.trainjob.attempts import Attempt
from steps.lib.trainjob.build import RUN, job_name, train_job
from steps.lib.trainjob.cancel import pods_of
from steps.lib.trainjob.follow import see
from steps.lib.trainjob.objects import living
from steps.lib.trainjob.state import state_of
from steps.lib.trainjob.training import Training
from steps.lib.wait import wait


def take(training: Training) -> tuple[Attempt, Object]:
    """The attempt to follow and its TrainJob.

    Raises:
        UserError: another run trains this key; the TrainJob was made from other settings; or the
            cluster cannot take it (preflight.py).
        TemporaryError: what an earlier attempt left does not go away.
    """
    newest = attempts.current(training.store, training.spec.key)
    job = training.job(newest.number) if newest else None
    if newest and job and not newest.ended:
        if _run_of(job) == training.spec.run_id:
            return newest, _adopt(training, job)
        _refuse_if_at_work(training, newest, job)
    _refuse_other_holder(training)
    nodes = preflight.check(training.cluster, training.place)
    if newest:
        _clear(training, newest, job)
    attempt = attempts.begin(training.store, training.spec.key, run_id=training.spec.run_id, nodes=nodes)
    return attempt, _create(training, attempt, nodes)


def _adopt(training: Training, job: Object) -> Object:
    meta, run = job["metadata"], _run_of(job)
    if run != training.spec.run_id:
        raise _already_running(job)
    if meta.get("annotations", {}).get(SPEC) != training.spec.digest:
        raise UserError(
            f"TrainJob {_name(job)} of this run was made from other settings; stop it with "
            f"`python -m pipelines.runs cancel {run}`, then start the run again"
        )
    training.say(f"gpu: going on with TrainJob {_name(job)}, made {meta.get('creationTimestamp', '')}")
    return job


def _refuse_if_at_work(training: Training, newest: Attempt, job: Object) -> None:
    state = state_of(see(training, job))
    if not state.ended:
        raise _already_running(job)
    attempts.end(training.store, training.spec.key, newest.number, code=state.code, why=state.why)


def _already_running(job: Object) -> UserError:
    run = _run_of(job) or "(no run)"
    return UserError(
        f"already running: {run} (TrainJob {_name(job)}); follow it with `python -m pipelines.runs status {run} --follow`"
    )


def _refuse_other_holder(training: Training) -> None:
    """Another run trains this key somewhere else: said before GPUs are asked for, not by the pods."""
    holder = holder_of(training.store, f"{training.base}/lease.json")
    if holder and holder.run_id != training.spec.run_id and time.time() - holder.heartbeat < STALE_S:
        raise HeldError(holder)


def _clear(training: Training, attempt: Attempt, job: Object | None) -> None:
    """Nothing of an earlier attempt may still be there when the next one starts."""
    name = job_name(training.spec.key, attempt.number)
    if job is not None:
        training.cluster.delete(TRAINJOB, training.spec.namespace, name, uid=job["metadata"]["uid"])
    old = {"metadata": {"name": name, "namespace": training.spec.namespace}}
    wait(
        lambda: not living(pods_of(training.cluster, old)) and training.job(attempt.number) is None,
        what=f"TrainJob {name} and its pods are gone",
        timeout_s=training.place.grace_s + training.patience.stuck_s,
        say=training.say,
        every_s=training.patience.poll_s,
    )


def _create(training: Training, attempt: Attempt, nodes: int) -> Object:
    spec = training.spec
    body = train_job(spec, nodes=nodes, attempt=attempt.number)
    try:
        job = training.cluster.create(TRAINJOB, body)
    except ExistsError as e:
        there = training.job(attempt.number)
        if there is None:
            raise TemporaryError(f"TrainJob {_name(body)} comes and goes; try again") from e
        return _adopt(training, there)
    if attempts.current(training.store, spec.key) != attempt:  # we slept while others went on
        training.cluster.delete(TRAINJOB, spec.namespace, body["metadata"]["name"], uid=job["metadata"]["uid"])
        raise TemporaryError(f"attempt {attempt.number} of {training.base} is over already; try again")
    training.say(
        f"gpu: TrainJob {_name(job)}: {nodes} nodes, {nodes * spec.gpus_per_node} GPUs, "
        f"{nodes * spec.nproc} processes, queue {spec.queue}"
    )
    return job


def _run_of(job: Object) -> str:
    return str(job["metadata"].get("labels", {}).get(RUN, ""))


def _name(job: Object) -> str:
    return f"{job['metadata']['namespace']}/{job['metadata']['name']}"
