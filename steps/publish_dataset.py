"""Token shards -> a dataset version: a manifest that names them; no bytes move.

version = sha256 over schema version, tokenizer identity, dtype and the documents' tokens in order.
"""

from datetime import timedelta

from steps.contract import Context, FolderRef, Params as BaseParams, Result as BaseResult, Step


class Params(BaseParams):
    """What to put together, under which name."""

    name: str
    """datasets/<name>/<version>."""
    docs: str
    tokenizer: str
    tokens: tuple[str, ...]
    """Folders that tokenize published, one for each file of `docs`, in any order."""


class Result(BaseResult):
    """The dataset version."""

    dataset: FolderRef
    version: str
    """64 hex characters; the first 16 are in the folder's name."""
    num_documents: int
    num_tokens: int
    """In the training split."""


step = Step(image="data", timeout=timedelta(hours=1), cpus=1, memory_gib=2)

EXAMPLE = Params(name="example", docs="docs/example", tokenizer="tokenizers/example", tokens=("tokens/example",))


def run(params: Params, ctx: Context) -> Result:
    """Publish datasets/<name>/<version>.

    Raises:
        UserError: a part is missing, doubled, or was made by another tokenizer.
    """
    raise NotImplementedError
