"""The plan: what hits and what runs, why, where training goes on, and what does not fit.

The records are those that the steps themselves leave behind when they run.
"""

from pathlib import Path
from typing import Any

import pytest

from pipelines.build import pipeline
from pipelines.plan import Plan, make_plan
from pipelines.settings.load import load
from steps import ingest, publish_dataset, tokenize, tokenizer, train
from steps.lib import checkpoint, folder
from steps.lib.errors import UserError
from steps.lib.store import Store, open_store
from steps.runner import call
from steps.train import size
from tests.examples import example_text
from tests.pipelines.test_whole import RECIPE

GIB = 1 << 30


class Place:
    """A recipe on small texts, and a store where its data steps have run."""

    def __init__(self, root: Path):
        (root / "text").mkdir()
        for number in range(20):
            (root / f"text/{number:02d}.txt").write_text(example_text(number))
        self.recipe = root / "mini.toml"
        self.recipe.write_text(RECIPE.replace("TEXT", str(root / "text")))
        self.store: Store = open_store(f"file://{root}/store")
        recipe = load(str(self.recipe), "local")[0].value
        docs = self.call(ingest, **{f: getattr(recipe.data, f) for f in ingest.Params.model_fields})
        words = self.call(tokenizer, docs=docs.docs, vocab_size=300, sample_mib=64).tokenizer
        tokens = [self.call(tokenize, docs=docs.docs, tokenizer=words, partition=p).tokens for p in docs.partitions]
        data = self.call(publish_dataset, name="mini", docs=docs.docs, tokenizer=words, tokens=tuple(tokens))
        self.training = train.Params(dataset=data.dataset, model=recipe.model, train=recipe.train)

    def call(self, module: Any, **params: Any) -> Any:
        """Run a step as an engine would, under the run id `first`."""
        env = {"TRIPOD_STORE": self.store.uri, "TRIPOD_RUN_ID": "first", "TRIPOD_WORKERS": "1"}
        return call(module, module.Params(**params), env)[0]

    def plan(self, *sets: str) -> Plan:
        """Of a second run."""
        model, site = load(str(self.recipe), "local", sets)
        return make_plan(pipeline(model, site, "second"), model.value, "second", self.store, self.store.uri)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("plan"))


def steps_of(plan: Plan) -> dict[str, tuple[str, str]]:
    return {step.name: (step.verdict, step.why) for step in plan.steps}


def test_what_is_recorded_hits_and_what_depends_on_the_first_miss_is_unknown(place):
    hit = ("hit", "recorded by first")
    assert steps_of(place.plan()) == {
        "ingest": hit,
        "tokenizer": hit,
        "tokenize": hit,
        "publish-dataset": hit,
        "train": ("runs", "never run before"),
        "evaluate": ("unknown", "until train"),
        "export": ("unknown", "until train"),
        "register": ("unknown", "until export, train, evaluate"),
        "deploy": ("unknown", "until register"),
    }


def test_a_miss_names_what_has_changed(place):
    steps = steps_of(place.plan("tokenizer.vocab_size=290"))
    assert steps["ingest"] == ("hit", "recorded by first")
    assert steps["tokenizer"] == ("runs", "changed: vocab_size 300 -> 290")
    assert steps["tokenize"] == ("unknown", "until tokenizer")
    steps = steps_of(place.plan("data.holdout_fraction=0.3", "data.clean.min_chars=20"))
    assert steps["ingest"][1] == "changed: clean.min_chars 1 -> 20, holdout_fraction 0.2 -> 0.3"


def test_a_result_that_is_gone_is_a_miss(place):
    prefix = place.training.dataset
    key = f"{prefix}/{folder.MANIFEST}"
    manifest = place.store.get(key)
    place.store.delete([key])
    try:
        verdict, why = steps_of(place.plan())["publish-dataset"]
        assert verdict == "runs"
        assert prefix in why
    finally:
        place.store.put(key, manifest)


def test_training_goes_on_from_the_newest_whole_checkpoint_of_its_key(place, monkeypatch):
    """Where that is, the step itself says: the runner gives it its key."""
    seen = {}

    def run(params, ctx):
        seen[params.train.steps] = f"checkpoints/{ctx.key[:16]}"
        raise UserError("far enough")

    monkeypatch.setattr(train, "run", run)
    with pytest.raises(UserError, match="far enough"):
        place.call(train, **{name: getattr(place.training, name) for name in train.Params.model_fields})
    assert not any(line.startswith("goes on") for line in place.plan().lines())
    for step in (3, 12):
        prefix = checkpoint.prefix_of(seen[6], step)
        folder.publish(place.store, prefix, kind=checkpoint.KIND, content={"index.json": b"{}"})
    place.store.put(f"{checkpoint.prefix_of(seen[6], 15)}/index.json", b"{}")  # killed before its manifest
    try:
        assert "goes on from checkpoint step 12" in place.plan().lines()
        other = place.plan("train.learning_rate=0.02")
        assert not any(line.startswith("goes on") for line in other.lines()), "another key, another training"
    finally:
        checkpoint.clear(place.store, seen[6])


def test_without_a_store_every_step_is_unknown(place):
    model, site = load(str(place.recipe), "local")
    plan = make_plan(pipeline(model, site, "second"), model.value, "second", None, "s3://far")
    assert set(steps_of(plan).values()) == {("unknown", "a dry run does not contact this store")}
    assert plan.lines()[:2] == ["run second", "store s3://far"]


def test_the_size_of_the_training_by_hand(place):
    """Embedding V x H, one layer, one norm of H, with V = 300, H = I = 64, K = 32."""
    parameters = 300 * 64 + (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 64 + 2 * 64) + 64
    assert parameters == 43_968
    training, checkpoints = place.plan().training[:2]
    assert training == "training 44k parameters, 6 steps of 4 x 32 tokens = 768 tokens, on 1 x 2 cpu (gloo)"
    assert checkpoints == "checkpoints of 0.5 MB, every 3 steps, the last 2 stay"  # 12 bytes a parameter


def needs_gib(nodes: int) -> float:
    """Llama 3 8B, bfloat16, 8 GPUs a node, by hand but for the activations (tests/train/test_size.py)."""
    share = 8_030_261_248 / (8 * nodes)
    whole = 2 * 218_112_000 + 2 * 128_256 * 4096 + 4096  # two layers, embedding, head, last norm
    accumulates = 2 * 8 * nodes < 960
    state = (4 + 8) * share + 2 * whole + 4 * (share + (8_030_261_248 if accumulates else whole))
    recipe = load("llama3-8b", "prod")[0].value
    return (state + size.activation_bytes(recipe.model, recipe.train)) / GIB


def plan_8b(*sets: str) -> Plan:
    model, site = load("llama3-8b", "prod", sets)
    return make_plan(pipeline(model, site, "r"), model.value, "r", None, "s3://far")


def test_memory_is_told_for_each_size():
    lines = [line for line in plan_8b().training if line.startswith("memory")]
    assert lines == [f"memory {needs_gib(n):.1f} of 268.0 GiB a device on {8 * n}" for n in (4, 10, 12)]


@pytest.mark.parametrize("layers", [100_000, 10**22])
def test_what_does_not_fit_this_machine_is_refused(place, layers):
    with pytest.raises(UserError, match=r"model and train: need \S+ GiB, this machine has \d+\.\d; a smaller model"):
        place.plan(f"model.num_layers={layers}")


def test_what_does_not_fit_a_device_is_refused_with_what_would_help():
    smallest, largest = needs_gib(12), needs_gib(4)
    assert smallest < largest
    between = round((smallest + largest) / 2, 1)
    with pytest.raises(UserError) as caught:
        plan_8b(f"gang.device_memory_gib={between}")
    assert str(caught.value) == (
        f"scale.nodes 4: needs {largest:.1f} GiB a device, the site has {between:.1f}; "
        "more nodes, a smaller train.micro_batch or train.activation_checkpointing=full need less"
    )
    assert plan_8b(f"gang.device_memory_gib={between}", "scale.nodes=[12]").training[2].startswith("memory")
