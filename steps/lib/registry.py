"""Where the registry keeps what it says of a model.

models/<name>/<version>/                the model itself (steps.lib.folder), never changed
models/<name>/lineage/<version>.json    what it was made of and how good it is
models/<name>/lineage/<version>.md      the same for people: the card
models/<name>/versions/<version>.json   of the libraries that exported it last; no part of the model
models/<name>/smoke/<digest>.json       a smoke test that passed
models/<name>/aliases/<alias>           pointers: latest, champion
"""

import json
import math

from steps.lib import pointer
from steps.lib.errors import UserError
from steps.lib.store import NotFoundError, Store

LATEST = "latest"
CHAMPION = "champion"


def split(model: str) -> tuple[str, str]:
    """`models/<name>/<version>` -> (name, version).

    Raises:
        UserError: another form.
    """
    parts = model.split("/")
    if len(parts) != 3 or parts[0] != "models" or not all(parts):
        raise UserError(f"model: got {model!r}, allowed is models/<name>/<version>")
    return parts[1], parts[2]


def alias_key(name: str, alias: str) -> str:
    """Where the pointer is."""
    return f"models/{name}/aliases/{alias}"


def lineage_key(name: str, version: str) -> str:
    """Where the lineage of one version is."""
    return f"models/{name}/lineage/{version}.json"


def card_key(name: str, version: str) -> str:
    """Where the card of one version is."""
    return f"models/{name}/lineage/{version}.md"


def write_versions(store: Store, model: str, libraries: dict[str, str]) -> None:
    """Keep which versions of which libraries export `model`."""
    store.put(_versions_key(model), json.dumps(libraries, indent=1, sort_keys=True).encode())


def read_versions(store: Store, model: str) -> dict[str, str]:
    """The libraries that exported `model` last; nothing when that is not known."""
    try:
        return dict(json.loads(store.get(_versions_key(model))))
    except (NotFoundError, ValueError, TypeError):  # damaged is not known: the next export writes it anew
        return {}


def _versions_key(model: str) -> str:
    name, version = split(model)
    return f"models/{name}/versions/{version}.json"


def bits_per_byte(store: Store, model: str) -> float:
    """What the registered model got; infinity when its lineage has no finite number."""
    try:
        data = store.get(lineage_key(*split(model)))
    except NotFoundError:
        return math.inf
    try:
        bits = json.loads(data)["evaluation"]["bits_per_byte"]
    except (ValueError, KeyError, TypeError):
        return math.inf
    return bits if isinstance(bits, float) and math.isfinite(bits) else math.inf


def find(store: Store, name: str, version: str) -> str:
    """The model folder of a version (its first characters will do) or of an alias.

    Raises:
        UserError: nothing is registered so.
    """
    aliased = pointer.read(store, alias_key(name, version))
    if aliased:
        return aliased
    found = versions(store, name)
    matching = [known for known in found if known.startswith(version)]
    if len(matching) == 1:
        return f"models/{name}/{matching[0]}"
    if not found:
        raise UserError(
            f"model {name}: none is registered in {store.uri}; names are {', '.join(names(store)) or 'none'}"
        )
    what = "several versions begin so" if matching else "no such version or alias"
    raise UserError(f"model {name}: {version!r}: {what}; versions are {', '.join(found)}")


def versions(store: Store, name: str) -> list[str]:
    """Registered versions of a model, sorted."""
    keys = [head.key.rpartition("/")[2] for head in store.list(f"models/{name}/lineage")]
    return sorted(key.removesuffix(".json") for key in keys if key.endswith(".json"))


def names(store: Store) -> list[str]:
    """Names of all models that have an alias, sorted."""
    return sorted({head.key.split("/")[1] for head in store.list("models") if "/aliases/" in head.key})
