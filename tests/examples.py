"""What the steps' EXAMPLE Params name, made by the steps themselves: tiny, and the same everywhere.

raw/example/*.txt   docs/example   tokenizers/example   tokens/example      all text is for training
datasets/example/v1                                                         a quarter is held out
checkpoints/example/step-4                                                  random weights
models/example/v1                                                           the same, exported
"""

import tempfile
from pathlib import Path

from steps import ingest, publish_dataset, tokenize, tokenizer
from steps.contract import Context
from steps.lib.folder import MANIFEST, load, publish
from steps.lib.store import Store

NUM_TEXTS = 24
_SUBJECTS = ("The miller", "A young fox", "Her brother", "The old clock", "Nobody in town", "Each small boat")
_VERBS = ("carries", "counts", "forgets", "paints", "follows", "hides")
_OBJECTS = ("the seven keys", "a bag of flour", "the road to the sea", "two letters", "every lamp", "its own song")
_ENDS = ("before the rain", "at noon", "without a word", "in the cold hall", "as the bell rings", "until spring")


def seed_examples(store: Store) -> None:
    """Publish everything that an EXAMPLE names."""
    seed_data(store)
    seed_checkpoint(store)


def seed_data(store: Store) -> None:
    """Raw texts, and what each data step makes of them."""
    for number in range(NUM_TEXTS):
        store.put(f"raw/example/{number:02d}.txt", example_text(number).encode())
    with tempfile.TemporaryDirectory() as scratch:
        ctx = Context(store=store, run_id="example", key="0" * 64, scratch=Path(scratch), say=lambda line: None)
        docs = ingest.run(ingest.Params(source="raw/example", holdout_fraction=0), ctx).docs
        _move(store, docs, "docs/example")
        made = tokenizer.run(tokenizer.Params(docs="docs/example", vocab_size=300), ctx).tokenizer
        _move(store, made, "tokenizers/example")
        parts = tokenize_all(ctx, "docs/example", "tokenizers/example")
        _move(store, parts[0], "tokens/example")
        docs = ingest.run(ingest.Params(source="raw/example", holdout_fraction=0.25), ctx).docs
        parts = tokenize_all(ctx, docs, "tokenizers/example")
        params = publish_dataset.Params(name="example", docs=docs, tokenizer="tokenizers/example", tokens=parts)
        _move(store, publish_dataset.run(params, ctx).dataset, "datasets/example/v1")


def tokenize_all(ctx: Context, docs: str, tokenizer_prefix: str) -> tuple[str, ...]:
    """Tokenize every file of a docs folder; the folders that hold the tokens."""
    names = [file.name for file in load(ctx.store, docs).files]
    all_params = [tokenize.Params(docs=docs, tokenizer=tokenizer_prefix, partition=name) for name in names]
    return tuple(tokenize.run(params, ctx).tokens for params in all_params)


def example_text(number: int) -> str:
    """About 600 characters that look like language; another number, another text."""
    sentences = []
    for i in range(10):
        n = number * 10 + i
        words = _SUBJECTS[n % 6], _VERBS[(n // 2) % 6], _OBJECTS[(n // 3 + i) % 6], _ENDS[(n // 5 + number) % 6]
        sentences.append(" ".join(words) + ".")
    return f"Tale {number}\n\n" + "\n".join(sentences) + "\n"


def _move(store: Store, prefix: str, to: str) -> None:
    """Publish the content of `prefix` as `to`, and forget `prefix`: an example must find its own work undone."""
    manifest = load(store, prefix)
    content = {file.name: store.get(file.key) for file in manifest.files if file.key.startswith(prefix)}
    files = [file for file in manifest.files if not file.key.startswith(prefix)]
    publish(store, to, kind=manifest.kind, content=content, files=files, meta=manifest.meta)
    store.delete([f"{prefix}/{MANIFEST}"])


def seed_checkpoint(store: Store) -> None:
    """A checkpoint as the train step's EXAMPLE would end with; needs the data."""
    from steps import train
    from tests.after import making

    config, dataset = train.EXAMPLE.model, "datasets/example/v1"
    making.publish_checkpoint(
        store,
        making.random_model(config),
        config,
        prefix="checkpoints/example/step-4",
        dataset=dataset,
        eos_id=load(store, dataset).meta["eos_id"],
    )


def seed_model(store: Store) -> None:
    """The export of that checkpoint, for steps that are not cached and so not run by the contract test."""
    from steps import export

    with tempfile.TemporaryDirectory() as scratch:
        ctx = Context(store=store, run_id="example", key="0" * 64, scratch=Path(scratch), say=lambda line: None)
        _move(store, export.run(export.EXAMPLE, ctx).model, "models/example/v1")
