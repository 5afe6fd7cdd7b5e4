"""Sees one training through on the GPU cluster: submit or adopt, follow, keep the outcome, delete.

It holds nothing that the pods need: ended at any moment, it leaves the training running and takes it
up again when it is started anew. Everything that it does may be done twice, and by two at once.
"""

from typing import NoReturn

from steps.lib.errors import Exit, TemporaryError, error_of, is_retryable
from steps.lib.kube import Object
from steps.lib.kube.kinds import TRAINJOB
from steps.lib.trainjob import attempts
from steps.lib.trainjob.attempts import Attempt
from steps.lib.trainjob.cancel import is_cancelled
from steps.lib.trainjob.follow import Follower, cancel
from steps.lib.trainjob.state import Phase, State
from steps.lib.trainjob.submit import take
from steps.lib.trainjob.sweep import sweep
from steps.lib.trainjob.training import Training


def run(training: Training) -> None:
    """See the training through; return when its result is recorded.

    Raises:
        UserError: refused, by us, by the cluster or by the training itself.
        CancelledError: the run was cancelled, or somebody deleted its TrainJob.
        TemporaryError: cluster or store were out of reach for too long; the training goes on.
        TripodError: as the training ended.
    """
    while not training.patiently(training.recorded):
        if training.patiently(lambda: is_cancelled(training.store, training.spec.run_id)):
            cancel(training)
        attempt, job = training.patiently(lambda: take(training))
        state = Follower(training, attempt, job).follow()
        if state is not None:
            _conclude(training, attempt, job, state)
            training.patiently(lambda: sweep(training.cluster, training.store, training.spec.namespace))


def _conclude(training: Training, attempt: Attempt, job: Object, state: State) -> None:
    """Keep the outcome, then delete the TrainJob; raise what it means when there is no record."""
    recorded = training.patiently(training.recorded)
    code, why = (Exit.DONE, "") if recorded else _meaning(state)
    kept = training.patiently(
        lambda: attempts.end(training.store, training.spec.key, attempt.number, code=code, why=why)
    )
    meta = job["metadata"]
    training.patiently(lambda: training.cluster.delete(TRAINJOB, meta["namespace"], meta["name"], uid=meta["uid"]))
    ended = kept or attempt.model_copy(update={"code": code, "why": why})  # another launcher may have known more
    if ended.code != Exit.DONE:
        _raise(ended)


def _meaning(state: State) -> tuple[int, str]:
    """Exit code and reason of an end that left no record."""
    if state.phase is Phase.SUCCEEDED:
        return (
            Exit.TEMPORARY,
            "the training ended well, but its record is not in the store; run again to look once more",
        )
    if state.phase is Phase.GONE:
        return Exit.CANCELLED, "somebody deleted the TrainJob; run again to go on from the newest checkpoint"
    return state.code, state.why


def _raise(ended: Attempt) -> NoReturn:
    """As the pods ended. What killed them (128 and above) is temporary for whoever runs us."""
    message = f"gpu: {ended.why}"
    if ended.code >= 128 and is_retryable(ended.code):
        raise TemporaryError(f"{message} (exit code {ended.code})")
    raise error_of(ended.code, message)
