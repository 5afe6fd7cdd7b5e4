"""Result records: what makes a key, what is a hit, and what a miss says."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from steps import records
from steps.contract import BlobRef, FolderRef, Params, Result, Step
from steps.lib import folder
from steps.lib.errors import UserError
from steps.lib.store import Store


class Made(Result):
    """What the fake step makes."""

    docs: FolderRef
    blob: BlobRef
    note: str = ""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree of three steps.lib modules, as the root of what is digested."""
    files = {
        "steps/lib/__init__.py": "",
        "steps/lib/deep.py": "X = 1\n",
        "steps/lib/near.py": "def f():\n    from steps.lib import deep\n",
        "steps/lib/pack/__init__.py": "",
        "steps/lib/typed.py": "",
        "steps/lib/unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(records, "_ROOT", tmp_path)
    return tmp_path


@pytest.fixture
def write_step(tree: Path) -> Callable[..., ModuleType]:
    def write(text: str = "", name: str = "fake") -> ModuleType:
        path = tree / "steps" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        module = ModuleType(f"steps.{name}")
        module.__file__ = str(path)
        module.step = Step(image="data", timeout=timedelta(minutes=1), libraries=("pydantic",))  # type: ignore[attr-defined]
        return module

    return write


IMPORTS = """
from typing import TYPE_CHECKING
from steps.lib.near import f
if TYPE_CHECKING:
    from steps.lib import typed
else:
    import steps.lib.pack
"""


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("steps/fake.py", True),
        ("steps/lib/near.py", True),
        ("steps/lib/deep.py", True),  # two imports away, inside a function
        ("steps/lib/pack/__init__.py", True),
        ("steps/lib/typed.py", False),
        ("steps/lib/unused.py", False),
    ],
)
def test_the_source_is_all_that_a_step_imports(
    tree: Path, write_step: Callable[..., ModuleType], changed: str, counts: bool
) -> None:
    module = write_step(IMPORTS)
    before = records.source_digest(module)
    assert records.source_digest(module) == before
    with (tree / changed).open("a") as f:
        f.write("# another comment\n")
    assert (records.source_digest(module) != before) is counts


def test_the_source_of_a_package_is_every_file_of_it(tree: Path, write_step: Callable[..., ModuleType]) -> None:
    module = write_step("", name="pack/__init__")
    (tree / "steps/pack/inner.py").write_text("from steps.lib import deep\n")
    before = records.source_digest(module)
    (tree / "steps/lib/deep.py").write_text("X = 2\n")
    between = records.source_digest(module)
    (tree / "steps/pack/inner.py").write_text("")
    assert len({before, between, records.source_digest(module)}) == 3


def test_the_source_does_not_depend_on_where_it_is(
    tree: Path, write_step: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write_step(IMPORTS)
    here = records.source_digest(module)
    shutil.copytree(tree / "steps", tree / "moved/steps")
    monkeypatch.setattr(records, "_ROOT", tree / "moved")
    module.__file__ = str(tree / "moved/steps/fake.py")
    assert records.source_digest(module) == here


def test_no_library_by_that_name(write_step: Callable[..., ModuleType]) -> None:
    module = write_step()
    module.step = Step(image="data", timeout=timedelta(minutes=1), libraries=("no-such-library",))  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="library no-such-library: not installed here; run `make setup`"):
        records.key_parts(module, Params())


def parts(**changes: object) -> records.KeyParts:
    values = {"step": "fake", "source": "s", "libraries": {"l": "1.0"}, "params": {"n": 1, "deep": {"a": "x"}}}
    return records.KeyParts.model_validate({**values, "fingerprint": "f", **changes})


def record(made: Made, of: records.KeyParts | None = None, run_id: str = "run-1") -> records.Record:
    return records.now_record(of or parts(), made, run_id, 0.0)


@pytest.fixture
def made(store: Store) -> Made:
    """A result that names content which is in the store."""
    folder.publish(store, "docs/d", kind="docs", content={"a": b"text"})
    return Made(docs="docs/d", blob=folder.put_blob(store, b"blob").key, note="n")


def test_equal_parts_have_equal_keys() -> None:
    assert parts().key == parts().key
    others = [
        parts(step="other"),
        parts(source="t"),
        parts(libraries={"l": "1.1"}),
        parts(params={"n": 2, "deep": {"a": "x"}}),
        parts(fingerprint="g"),
    ]
    assert len({parts().key, *(other.key for other in others)}) == 6


def test_never_run_then_a_hit(store: Store, made: Made) -> None:
    assert records.find(store, parts(), Made) == (None, "never run before")
    saved = record(made)
    records.save(store, saved, Made)
    assert records.find(store, parts(), Made) == (saved, "recorded by run-1")
    assert records.find(store, parts(), Made, full=True) == (saved, "recorded by run-1")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"source": "t"}, "changed: code"),
        ({"libraries": {"l": "1.1"}}, "changed: l 1.0 -> 1.1"),
        ({"params": {"n": 2, "deep": {"a": "x"}}}, "changed: n 1 -> 2"),
        ({"params": {"n": 1, "deep": {"a": "y"}}}, "changed: deep.a x -> y"),
        ({"fingerprint": "g"}, "changed: input files"),
        ({"source": "t", "params": {"n": 2, "deep": {"a": "x"}}}, "changed: code, n 1 -> 2"),
    ],
)
def test_a_miss_says_what_changed(store: Store, made: Made, changes: dict[str, object], why: str) -> None:
    records.save(store, record(made), Made)
    assert records.find(store, parts(**changes), Made) == (None, why)


def test_a_broken_folder_is_a_miss_that_names_it(store: Store, made: Made) -> None:
    records.save(store, record(made), Made)
    (file,) = folder.load(store, "docs/d").files
    store.upload(file.key, b"TEXT")
    assert records.find(store, parts(), Made)[0]
    assert records.find(store, parts(), Made, full=True) == (
        None,
        f"{file.key} differs from the digest in its manifest",
    )
    store.delete([file.key])
    assert records.find(store, parts(), Made) == (None, f"{file.key} is missing")
    store.upload(file.key, b"text")
    store.delete([made.blob])
    assert records.find(store, parts(), Made) == (None, f"{made.blob} is missing")


def test_an_unreadable_record_is_a_miss(store: Store, made: Made) -> None:
    path = f"records/fake/{parts().key}.json"
    for content in (b"", b"{", record(made).model_dump_json().replace('"docs":', '"dox":').encode()):
        store.put(path, content)
        assert records.find(store, parts(), Made) == (None, f"record {path} is unreadable")
        records.save(store, record(made), Made)
        assert records.find(store, parts(), Made)[0], "a broken record is replaced"


def test_of_racing_saves_the_first_stays(store: Store, made: Made) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: records.save(store, record(made, run_id=f"run-{n}"), Made), range(6)))
    first, _ = records.find(store, parts(), Made)
    records.save(store, record(made, run_id="late"), Made)
    assert records.find(store, parts(), Made)[0] == first


def test_refs_are_the_fields_that_name_content(made: Made) -> None:
    assert records.refs_of(made) == ["docs/d", made.blob]
    assert records.refs_of(made.model_copy(update={"docs": ""})) == [made.blob]


def test_a_real_step_has_a_stable_key() -> None:
    step = import_module("steps.ingest")
    once = records.key_parts(step, step.EXAMPLE)
    assert once == records.key_parts(step, step.EXAMPLE)
    assert len(once.key) == 64


def test_a_miss_is_compared_with_the_record_that_is_most_like_it(store: Store, made: Made) -> None:
    """Two recipes share a store: what differs is told against one's own."""
    for known in (parts(), parts(params={"n": 9, "deep": {"a": "z"}}, fingerprint="g")):
        records.save(store, record(made, known), Made)
    assert records.find(store, parts(params={"n": 2, "deep": {"a": "x"}}), Made) == (None, "changed: n 1 -> 2")
