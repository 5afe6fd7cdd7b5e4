"""Target `kubernetes`: this process only launches; the training runs in pods of the GPU cluster (steps/lib/trainjob).

The pods run this very step with the same arguments and TRIPOD_TRAIN_TARGET=process, and leave the
record; the launcher's key must be theirs. It is: they run from the same tree, in the same image.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import steps.train
from steps import records
from steps.contract import Context
from steps.lib import tree
from steps.lib.errors import TemporaryError
from steps.lib.gpu_cluster import open_gpu
from steps.lib.trainjob import launcher
from steps.lib.trainjob.build import train_spec
from steps.lib.trainjob.cancel import is_cancelled
from steps.lib.trainjob.follow import cancel
from steps.lib.trainjob.place import read_place
from steps.lib.trainjob.training import Training
from steps.train import Params, Result
from steps.train.preflight import check_sizes, check_vocabulary


class _Told(BaseException):
    """SIGTERM: our pod is deleted, its node drained, or the run cancelled."""


def launch(params: Params, ctx: Context) -> Result:
    """See the training through on the GPU cluster.

    Raises:
        UserError: refused, here or there.
        TemporaryError: told to stop; the training goes on, and the next call adopts it.
        TripodError: as the training ended.
    """
    place = read_place(ctx.env)
    check_vocabulary(ctx.store, params)
    for nodes in place.sizes:
        check_sizes(params.train, nodes * place.nproc)
    parts = records.key_parts(steps.train, params)
    assert parts.key == ctx.key
    sources = tree.publish(ctx.store, ctx.env)
    spec = train_spec(place, key=ctx.key, run_id=ctx.run_id, args=arguments(params), env=ctx.env, tree=sources)
    with open_gpu(place) as cluster:
        training = Training(
            cluster=cluster,
            store=ctx.store,
            place=place,
            spec=spec,
            recorded=lambda: records.find(ctx.store, parts, Result)[0] is not None,
            scratch=ctx.scratch,
            say=ctx.say,
        )
        try:
            with _listening():
                launcher.run(training)
        except _Told:
            _leave(training)
    record, why = records.find(ctx.store, parts, Result)
    if record is None:
        raise TemporaryError(f"records/train/{ctx.key}.json: was there a moment ago; {why}")
    return Result.model_validate(record.result)


def arguments(params: Params) -> list[str]:
    """The words after `python -m steps train` that give `params` again."""
    words = []
    for field in type(params).model_fields:
        value = getattr(params, field)
        words.append(f"--{field}={value if isinstance(value, str) else value.model_dump_json()}")
    return words


def _leave(training: Training) -> None:
    """Told to stop: a cancelled run takes its GPU job along, everything else leaves it running."""
    if is_cancelled(training.store, training.spec.run_id):
        cancel(training)
    raise TemporaryError(
        "told to stop; the training goes on on the gpu cluster, run again to follow it "
        f"(`python -m pipelines.runs cancel {training.spec.run_id}` ends it)"
    )


@contextmanager
def _listening() -> Iterator[None]:
    """SIGTERM ends what runs inside, once: what follows must not be cut short."""

    def told(signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Told

    before = signal.signal(signal.SIGTERM, told)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is told:
            signal.signal(signal.SIGTERM, before)
