"""steps.register: lineage, card, aliases; who is champion, whoever races."""

import json
import math
import threading

import pytest

from steps import register
from steps.lib import folder, pointer, registry
from steps.lib.errors import UserError
from tests.after.serving import publish_model
from tests.steps.calling import context

META = {
    "model": {"num_layers": 1, "hidden_size": 64},
    "num_parameters": 1234,
    "chat_template": False,
}


@pytest.fixture
def place(store):
    """A store with everything that a model comes from."""
    folder.publish(store, "docs/d", kind="docs", meta={"documents": "abc", "num_files": 3})
    counts = {"train": 100, "heldout": 10}
    folder.publish(store, "datasets/d/v1", kind="dataset", meta={"version": "f" * 64, "num_tokens": counts})
    folder.publish(store, "checkpoints/k/step-4", kind="checkpoint", meta={"step": 4})
    return store


def params(version: str, bits: float, **changes) -> register.Params:
    values = {
        "name": "m",
        "model": f"models/m/{version}",
        "checkpoint": "checkpoints/k/step-4",
        "dataset": "datasets/d/v1",
        "docs": "docs/d",
        "report": "blobs/sha256/00",
        "loss": 2.5,
        "bits_per_byte": bits,
    }
    return register.Params.model_construct(**{**values, **changes})  # also what Params itself would refuse


def run(store, version: str, bits: float, **changes) -> register.Result:
    return register.run(params(version, bits, **changes), context(store))


def alias(store, name: str) -> str | None:
    return pointer.read(store, f"models/m/aliases/{name}")


def test_lineage_leads_from_documents_to_model(place):
    publish_model(place, "v1", **META)
    registry.write_versions(place, "models/m/v1", {"torch": "2.99.1"})
    before = {head.key: head.tag for head in place.list("models/m/v1")}
    assert run(place, "v1", 1.5) == register.Result(model="models/m/v1", champion=True)
    lineage = json.loads(place.get("models/m/lineage/v1.json"))
    for part, key in {"docs": "docs/d", "dataset": "datasets/d/v1", "checkpoint": "checkpoints/k/step-4"}.items():
        assert lineage[part]["key"] == key
        assert lineage[part]["manifest_sha256"] == folder.load(place, key).digest
    assert lineage["docs"]["documents"] == "abc"
    assert lineage["model"]["digest"] == folder.load(place, "models/m/v1").meta["digest"]
    assert lineage["model"]["versions"] == {"torch": "2.99.1"}
    assert lineage["evaluation"] == {"report": "blobs/sha256/00", "loss": 2.5, "bits_per_byte": 1.5}
    card = place.get("models/m/lineage/v1.md").decode()
    assert all(
        text in card
        for text in (
            "# m v1",
            "| written by | torch 2.99.1 |",
            "1,234",
            "1.5000",
            "datasets/d/v1",
            "10 heldout, 100 train",
        )
    )
    assert {head.key: head.tag for head in place.list("models/m/v1")} == before, "the folder itself never changes"


def test_the_better_model_is_champion_the_newest_is_latest(place):
    for version, bits, champion in [("v1", 1.5, "v1"), ("v2", 1.6, "v1"), ("v3", 1.5, "v1"), ("v4", 1.4, "v4")]:
        publish_model(place, version, **META)
        result = run(place, version, bits)
        assert result.champion is (champion == version)
        assert alias(place, "champion") == f"models/m/{champion}"
        assert alias(place, "latest") == f"models/m/{version}"


def test_registering_again_changes_nothing(place):
    publish_model(place, "v1", **META)
    first = run(place, "v1", 1.5)
    contents = {head.key: place.get(head.key) for head in place.list("models")}
    assert run(place, "v1", 1.5) == first
    assert {head.key: place.get(head.key) for head in place.list("models")} == contents


@pytest.mark.parametrize("bits", [math.nan, math.inf, -math.inf])
def test_no_number_is_never_champion(place, bits):
    publish_model(place, "v1", **META)
    assert run(place, "v1", bits).champion is False
    assert alias(place, "champion") is None
    publish_model(place, "v2", **META)
    assert run(place, "v2", 9.0).champion is True
    assert run(place, "v1", bits).champion is False
    with pytest.raises(ValueError):
        register.Params.model_validate(params("v1", bits).model_dump())


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_of_racing_models_the_best_is_champion(place, order):
    """Every model's thread starts at once; whatever the interleaving, the best one must be left."""
    bits = {f"v{n}": 2.0 - 0.1 * n for n in order}
    for version in bits:
        publish_model(place, version, **META)
    start = threading.Barrier(len(bits))
    results: dict[str, register.Result] = {}

    def register_one(version: str) -> None:
        start.wait()
        results[version] = run(place, version, bits[version])

    threads = [threading.Thread(target=register_one, args=(version,)) for version in bits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(bits)
    assert alias(place, "champion") == "models/m/v3"
    assert results["v3"].champion
    assert alias(place, "latest") in {f"models/m/{version}" for version in bits}


def test_one_model_registered_twice_at_once(place):
    publish_model(place, "v1", **META)
    start = threading.Barrier(2)
    results = []

    def register_it() -> None:
        start.wait()
        results.append(run(place, "v1", 1.5))

    threads = [threading.Thread(target=register_it) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [register.Result(model="models/m/v1", champion=True)] * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "other"}, r"model: got models/m/v1, expected models/other/<version>"),
        ({"model": "models/m"}, r"model: got 'models/m', allowed is models/<name>/<version>"),
        ({"docs": "docs/none"}, r"docs/none: no such docs"),
        ({"dataset": "docs/d"}, r"docs/d: is a docs, expected a dataset"),
    ],
)
def test_what_is_not_there_is_refused(place, changes, said):
    publish_model(place, "v1", **META)
    with pytest.raises(UserError, match=said):
        run(place, "v1", 1.5, **changes)
    assert alias(place, "champion") is None


def test_models_are_found_by_alias_and_by_the_beginning_of_a_version(place):
    for version in ("aa1", "ab2"):
        publish_model(place, version, **META)
        run(place, version, 1.5)
    assert registry.find(place, "m", "champion") == "models/m/aa1"
    assert registry.find(place, "m", "latest") == "models/m/ab2"
    assert registry.find(place, "m", "ab") == "models/m/ab2"
    assert registry.names(place) == ["m"]
    for version, said in [("a", "several versions begin so; versions are aa1, ab2"), ("x", "no such version or alias")]:
        with pytest.raises(UserError, match=said):
            registry.find(place, "m", version)
    with pytest.raises(UserError, match=r"model none: none is registered in .*; names are m"):
        registry.find(place, "none", "champion")


def test_a_champion_whose_lineage_may_not_be_read_is_not_taken_for_a_bad_one(store):
    class Refusing:
        def get(self, key):
            raise UserError(f"get {key}: permission denied")

    with pytest.raises(UserError, match=r"get models/m/lineage/v1.json: permission denied"):
        registry.bits_per_byte(Refusing(), "models/m/v1")
    store.put("models/m/lineage/v1.json", b"{")
    assert registry.bits_per_byte(store, "models/m/v1") == math.inf


@pytest.mark.parametrize("data", [b'{"torch', b"3", b"[1]"])
def test_a_damaged_note_of_library_versions_is_no_note(place, data):
    registry.write_versions(place, "models/m/v1", {"torch": "2"})
    (key,) = (head.key for head in place.list("models/m/versions"))
    place.put(key, data)
    assert registry.read_versions(place, "models/m/v1") == {}
