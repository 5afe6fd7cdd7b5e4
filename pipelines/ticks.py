"""The runs of a schedule: whoever looks first gives each its record in the store, as train would have; Argo begins them.

install    what all ticks share -> a blob; its digest is in an annotation of every tick's workflow
take_up    a tick's workflow + that blob -> runs/<id>/: from then on `pipelines.runs` knows it
"""

from typing import Any

from pydantic import BaseModel, ConfigDict

from pipelines.engine.recorder import RunInfo, begin_record
from pipelines.engine.workflow import parse_workflow
from pipelines.run_state import new_state
from pipelines.runs_store import state_before
from steps.lib.digest import canonical_json
from steps.lib.kube import Object, seconds
from steps.lib.store import NotFoundError, Store

SHARED = "tripod/shared"
"""Annotation with the digest of a Shared."""


class Shared(BaseModel):
    """What all ticks share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    info: RunInfo
    """Run id and start are a tick's own."""
    document: dict[str, Any]
    """The workflow; its name is a tick's own."""

    def packed(self) -> bytes:
        """As it is stored."""
        return canonical_json(self.model_dump(mode="json"))


def take_up(store: Store, run: Object) -> bool:
    """Begin the record of a tick's run, unless it is there.

    Returns:
        Whether it has one now; False when what it was made from is not in this store.
    """
    name, digest = run["metadata"]["name"], (run["metadata"].get("annotations") or {}).get(SHARED)
    if state_before(store, name):
        return True
    try:
        shared = Shared.model_validate_json(store.get(f"blobs/sha256/{digest}"))
    except NotFoundError:
        return False
    document = shared.document | {"metadata": shared.document["metadata"] | {"name": name}}
    begun = seconds(run["metadata"]["creationTimestamp"])
    info = shared.info.model_copy(update={"run_id": name, "started": begun})
    begin_record(store, info, document, new_state(parse_workflow(document), begun, shared_logs=True))
    return True
