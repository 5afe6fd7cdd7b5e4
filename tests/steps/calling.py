"""Call a step's run() in a test."""

import tempfile
from pathlib import Path

from steps.contract import Context
from steps.lib.store import Store


def context(store: Store, **changes: object) -> Context:
    """A context as the runner would make one; the scratch folder is the test's temporary one."""
    values: dict[str, object] = {
        "store": store,
        "run_id": "test",
        "key": "0" * 64,
        "scratch": Path(tempfile.mkdtemp()),
        "env": {"TRIPOD_STORE": store.uri},
    }
    return Context(**{**values, **changes})  # type: ignore[arg-type]
