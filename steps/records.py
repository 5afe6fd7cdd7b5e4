"""Result records: why a step need not run again.

    key = sha256 of canonical JSON {step, source, libraries, params, fingerprint}

`source` is the digest of the step's own files and of every steps.lib module that they import, at
any depth; imports under `if TYPE_CHECKING:` do not count, nor do the packages that only reach other
places (_PLACES): what a store does is fixed by its conformance suite, and a mended retry must not train
every model again. Comments do count: bytes are compared.
A record is a hit while all that its result names in the store is whole: manifest there, every file
there with its size (`verify=full` also reads and hashes the bytes).
"""

import ast
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from steps.contract import Params, Result, Step, StoreMark
from steps.lib import folder
from steps.lib.digest import digest_of, sha256_hex
from steps.lib.errors import UserError
from steps.lib.store import ConflictError, NotFoundError, Store

_ROOT = Path(__file__).resolve().parent.parent
_PLACES = ("steps.lib.store", "steps.lib.kube", "steps.lib.gpu_cluster", "steps.lib.trainjob", "steps.lib.tree")
"""How bytes and work get to other places, not what comes out."""


_MOST_COMPARED = 20
"""Records looked at for the reason of a miss, the newest first."""


class LibraryError(UserError):
    """A library that a step declares is not installed here."""


class KeyParts(BaseModel):
    """What the key of a record is made of; kept in the record so that a miss can say why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: str
    source: str
    libraries: dict[str, str]
    params: dict[str, Any]
    fingerprint: str

    @property
    def key(self) -> str:
        """64 hex characters."""
        return digest_of(self.model_dump())


class Record(BaseModel):
    """One finished call of a step."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parts: KeyParts
    result: dict[str, Any]
    run_id: str
    finished: float
    """Seconds since the epoch."""
    wall_s: float


def key_parts(module: ModuleType, params: Params, fingerprint: str = "") -> KeyParts:
    """The parts of the key of calling the step `module` with `params`.

    Raises:
        LibraryError: a library that the step declares is not installed.
    """
    step: Step = module.step
    return KeyParts(
        step=module.__name__.removeprefix("steps."),
        source=source_digest(module),
        libraries=library_versions(step),
        params=params.model_dump(mode="json"),
        fingerprint=fingerprint,
    )


def find(store: Store, parts: KeyParts, result_type: type[Result], *, full: bool = False) -> tuple[Record | None, str]:
    """The valid record for `parts`, or None, and one line that says why.

    Args:
        full: also read and hash every file that the result names.
    """
    path = f"records/{parts.step}/{parts.key}.json"
    try:
        record = Record.model_validate_json(store.get(path))
        result = result_type.model_validate(record.result)
    except NotFoundError:
        return None, _why_missing(store, parts)
    except ValidationError:
        return None, f"record {path} is unreadable"
    for ref in refs_of(result):
        problem = folder.check(store, ref, full=full)
        if problem:
            return None, problem
    return record, f"recorded by {record.run_id}"


def save(store: Store, record: Record, result_type: type[Result]) -> None:
    """Publish a record. A racing twin may have been first: theirs stays, unless it is broken."""
    path = f"records/{record.parts.step}/{record.parts.key}.json"
    data = record.model_dump_json(indent=1).encode()
    try:
        store.create(path, data)
    except ConflictError:
        if find(store, record.parts, result_type)[0] is None:
            store.put(path, data)


def refs_of(result: Result) -> list[str]:
    """What `result` names in the store (its fields of type FolderRef and BlobRef), in field order."""
    return [
        value
        for name, info in type(result).model_fields.items()
        if any(isinstance(m, StoreMark) for m in info.metadata) and (value := getattr(result, name))
    ]


def source_digest(module: ModuleType) -> str:
    """Digest of the files of step `module` and of all steps.lib modules that they import."""
    assert module.__file__
    own = Path(module.__file__)
    files = sorted(own.parent.rglob("*.py")) if own.name == "__init__.py" else [own]
    seen: dict[str, str] = {}
    while files:
        path = files.pop()
        name = path.relative_to(_ROOT).as_posix()
        if name not in seen:
            source = path.read_bytes()
            seen[name] = sha256_hex(source)
            files += _lib_files(ast.parse(source, filename=name))
    return digest_of(seen)


def _lib_files(tree: ast.AST) -> Iterable[Path]:
    for name in imports(tree):
        if name.startswith("steps.lib.") and not any(f"{name}.".startswith(f"{place}.") for place in _PLACES):
            path = _ROOT.joinpath(*name.split("."))
            for candidate in (path.with_suffix(".py"), path / "__init__.py"):
                if candidate.is_file():
                    yield candidate


def imports(node: ast.AST) -> Iterable[str]:
    """Dotted names that `node` imports, also inside functions, not under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            yield from imports(ast.Module(body=child.orelse, type_ignores=[]))
        else:
            yield from imports(child)


def _why_missing(store: Store, parts: KeyParts) -> str:
    """Compare with the record of the same step that is most like it: the reader wants to know what changed."""
    heads = sorted(store.list(f"records/{parts.step}"), key=lambda head: head.modified, reverse=True)
    if not heads:
        return "never run before"
    compared = []
    for head in heads[:_MOST_COMPARED]:
        try:
            compared.append(_changes(Record.model_validate_json(store.get(head.key)).parts, parts))
        except (ValidationError, NotFoundError):
            continue
    changes = min(compared, key=len, default=[])
    return "changed: " + ", ".join(changes) if changes else "no record"


def _changes(old: KeyParts, parts: KeyParts) -> list[str]:
    changes = ["code"] if old.source != parts.source else []
    changes += _changed("", old.libraries, parts.libraries)
    changes += _changed("", old.params, parts.params)
    if old.fingerprint != parts.fingerprint:
        changes.append("input files")
    return changes


def _changed(prefix: str, old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            changes += _changed(f"{prefix}{name}.", before, after)
        elif before != after:
            changes.append(f"{prefix}{name} {_short(before)} -> {_short(after)}")
    return changes


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else text[:18] + "..." + text[-18:]


def library_versions(step: Step) -> dict[str, str]:
    """Installed versions of the libraries that `step` declares.

    Raises:
        LibraryError: one is not installed here.
    """
    return {name: _version(name) for name in step.libraries}


def _version(distribution: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # 20 ms, which most steps do without

    try:
        return version(distribution)
    except PackageNotFoundError as e:
        raise LibraryError(f"library {distribution}: not installed here; {how_to_install()}") from e


def how_to_install() -> str:
    """What to do where a library is missing."""
    activate = Path(".venv/bin/activate")
    other = Path(sys.prefix).resolve() != Path(".venv").resolve()
    return f"`. {activate}` first" if activate.exists() and other else "run `make setup`"


def now_record(parts: KeyParts, result: Result, run_id: str, started: float) -> Record:
    """The record of a call that began at `started` (time.time()) and has just ended."""
    finished = time.time()
    return Record(
        parts=parts,
        result=result.model_dump(mode="json"),
        run_id=run_id,
        finished=finished,
        wall_s=round(finished - started, 3),
    )
