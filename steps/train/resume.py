"""Going on from the newest checkpoint that is whole.

Rank 0 chooses, all load, all must have succeeded; what is broken is named and the next older one tried.
"""

import sys
from collections.abc import Iterator

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor
from torch.optim import AdamW

from steps.lib import checkpoint, folder
from steps.lib.checkpoint import CheckpointMeta, Index
from steps.lib.dcp import StoreReader
from steps.lib.errors import TemporaryError, UserError
from steps.lib.store import Store
from steps.train import state as training_state
from steps.train.gang import Gang
from steps.train.optimizer import set_applied_steps
from steps.train.saver import describe


def restore(
    store: Store, base: str, gang: Gang, parameters: dict[str, DTensor], optimizer: AdamW, *, seed: int
) -> CheckpointMeta | None:
    """Load model, optimizer and generators from the newest whole checkpoint below `base`.

    Generators are restored at the number of ranks that saved them; at another, each rank's are
    started afresh from the seed, the step and the rank.

    Returns:
        What the checkpoint says of itself; None when there is none to go on from.

    Raises:
        TemporaryError: the store is out of reach.
    """
    candidates = _candidates(store, base) if gang.is_first else iter(())
    while True:
        chosen: list[tuple[CheckpointMeta, Index] | None] = [next(candidates, None)]
        dist.broadcast_object_list(chosen, src=0, group=gang.control)
        if chosen[0] is None:
            return None
        meta, index = chosen[0]
        prefix = checkpoint.prefix_of(base, meta.step)
        problem = _load(StoreReader(store, prefix, index), gang, parameters, optimizer, meta)
        if not problem:
            set_applied_steps(optimizer, meta.optimizer_steps)
            if meta.world_size != gang.ranks:
                training_state.seed_rng(seed, meta.step, gang.rank)
            return meta
        if gang.is_first:
            _tell_skipped(prefix, problem)


def _candidates(store: Store, base: str) -> Iterator[tuple[CheckpointMeta, Index]]:
    for step in checkpoint.committed_steps(store, base):
        prefix = checkpoint.prefix_of(base, step)
        try:
            found = checkpoint.read_meta(store, prefix), checkpoint.read_index(store, prefix)
            problem = folder.check(store, prefix) or _lacks(*found)
        except UserError as e:
            problem = str(e)
        if problem:
            _tell_skipped(prefix, problem)
        else:
            yield found


def _lacks(meta: CheckpointMeta, index: Index) -> str:
    """What says that not every rank has written its part; "" when all have."""
    names = [training_state.rng_name(rank) for rank in range(meta.world_size)]
    missing = [name for name in names if name not in index.tensors]
    return f"its index lacks {', '.join(missing)}" if missing else ""


def _load(
    reader: StoreReader,
    gang: Gang,
    parameters: dict[str, DTensor],
    optimizer: AdamW,
    meta: CheckpointMeta,
) -> str:
    """Why the checkpoint cannot be used, on every rank the same; "" when it is loaded."""
    state = training_state.tensors(parameters, optimizer)
    packed = training_state.empty_rng()
    if meta.world_size == gang.ranks:
        state[training_state.rng_name(gang.rank)] = packed
    try:
        load(
            state,
            storage_reader=reader,
            planner=DefaultLoadPlanner(flatten_state_dict=False),
            process_group=gang.checkpoints,
        )
    except CheckpointException as e:
        temporary = [cause for cause, _ in e.failures.values() if isinstance(cause, TemporaryError)]
        if temporary:
            raise TemporaryError(str(temporary[0])) from e
        return describe(e)
    if meta.world_size == gang.ranks:
        training_state.unpack_rng(packed, gang.device)
    return ""


def _tell_skipped(prefix: str, problem: str) -> None:
    print(f"warning: checkpoint {prefix} is skipped: {problem}", file=sys.stderr, flush=True)
