"""What can be refused before any process starts: sizes that do not divide, ids that have no row."""

from steps.lib import folder
from steps.lib.errors import UserError
from steps.lib.store import Store
from steps.train import Params, TrainConfig


def check_sizes(config: TrainConfig, ranks: int) -> None:
    """Whether the recipe can run on so many ranks.

    Raises:
        UserError: a number does not divide; names all of them.
    """
    forward = config.micro_batch * ranks
    if config.global_batch % forward:
        raise UserError(
            f"global_batch: got {config.global_batch}, allowed are multiples of micro_batch x ranks = "
            f"{config.micro_batch} x {ranks} = {forward}"
        )
    if ranks % config.replicate:
        raise UserError(f"replicate: got {config.replicate}, allowed are divisors of {ranks} ranks")


def check_vocabulary(store: Store, params: Params) -> int:
    """Whether every id of the dataset has a row in the model.

    Returns:
        The id that ends a document.

    Raises:
        UserError: the dataset's ids go beyond the model's rows, or there is no dataset.
    """
    meta = folder.load(store, params.dataset, "dataset").meta
    rows, size = params.model.vocab_size, int(meta["vocab_size"])
    if rows < size:
        raise UserError(
            f"vocab_size: dataset {params.dataset} has max id {size - 1}, model has {rows} rows; "
            f"allowed is {size} or more"
        )
    return int(meta["eos_id"])
