"""Find, read, override and check settings. Everything wrong is one line with file, key and what is allowed.

NAME      the first of ./config, $TRIPOD_CONFIG, the installed copy that has <kind>/NAME.toml
FILE      anything that ends in .toml
--set     path=value on top, JSON or else a string; paths of recipe and site are disjoint
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from pipelines.settings.recipe import Recipe
from pipelines.settings.site import Site
from steps.lib.errors import UserError

if TYPE_CHECKING:
    from steps.lib.store import Store

_HERE = Path(__file__).resolve().parent
T = TypeVar("T", Recipe, Site)
_MAX_NAME_BYTES = 200
_NOT_TOML = {"tuple_type": "Input should be a list", "model_type": "Input should be a section"}
"""What pydantic says in words of Python, by its error type."""


@dataclass(frozen=True, kw_only=True)
class Loaded(Generic[T]):
    """Validated settings and where each value comes from."""

    name: str
    """NAME, or the file's stem."""
    path: Path
    value: T
    overrides: dict[str, Any]
    """What --set gave, by path."""

    def origin(self, path: str) -> str:
        """`--set`, the file, or `default` for the value at dotted `path`."""
        if any(path == o or path.startswith(o + ".") for o in self.overrides):
            return "--set"
        return str(self.path) if _has(_read(self.path), path.split(".")) else "default"


def load(model: str, site: str = "", sets: Sequence[str] = ()) -> tuple[Loaded[Recipe], Loaded[Site]]:
    """The recipe and the site of a run.

    Args:
        model: NAME or FILE.
        site: NAME or FILE; empty for $TRIPOD_SITE, else `local`.
        sets: `path=value` words; each goes to the recipe or to the site, by its first part.

    Raises:
        UserError: no such file, not TOML, an unknown or wrong key.
    """
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for path, value in (_parse_set(word) for word in sets):
        known = list(Recipe.model_fields) + list(Site.model_fields)
        section = path.split(".")[0]
        if section not in known:
            raise UserError(
                f"--set {path}: unknown section {section!r}{_meant(section, known)}; allowed are {', '.join(known)}"
            )
        (ours if section in Recipe.model_fields else theirs)[path] = value
    return _load("models", model, Recipe, ours), _load("sites", site_name(site), Site, theirs)


def load_site(site: str = "", sets: Sequence[str] = ()) -> Loaded[Site]:
    """The site alone, for commands that need no recipe. Raises UserError as `load`."""
    return _load("sites", site_name(site), Site, dict(_parse_set(word) for word in sets))


def site_name(site: str) -> str:
    """The site asked for, else $TRIPOD_SITE, else `local`: never guessed from a kubeconfig."""
    return site or os.environ.get("TRIPOD_SITE") or "local"


def store_uri(site: Site) -> str:
    """The site's store, else $TRIPOD_STORE, else a folder in the user's data directory."""
    if site.store.uri:
        return site.store.uri
    if given := os.environ.get("TRIPOD_STORE"):
        return given
    data = Path(os.path.expanduser(os.environ.get("XDG_DATA_HOME") or "~/.local/share"))
    if str(data).startswith("~"):
        raise UserError(
            "HOME: not set, and this user has no home; set TRIPOD_STORE, and TRIPOD_STATE for servers that stay"
        )
    return f"file://{data.absolute()}/tripod"


def pods_store_uri(site: Loaded[Site]) -> str:
    """The store of a site whose steps run in pods.

    Raises:
        UserError: it is a folder: pods share no disk.
    """
    uri = store_uri(site.value)
    if not uri.startswith("s3://"):
        raise UserError(
            f"site {site.name}: store.uri is {uri}, allowed with engine argo is s3://bucket/prefix: pods share no disk"
        )
    return uri


def names(kind: str) -> list[str]:
    """Names of all recipes (kind `models`) or sites (`sites`) that can be found, sorted."""
    return sorted({path.stem for folder in _folders() for path in (folder / kind).glob("*.toml")})


def _folders() -> Iterable[Path]:
    given = os.environ.get("TRIPOD_CONFIG")
    yield from [Path("config"), *([Path(given)] if given else [])]
    yield from [_HERE.parent / "default_config", _HERE.parent.parent / "config"]


def _load(kind: str, name: str, settings_type: type[T], overrides: dict[str, Any]) -> Loaded[T]:
    path = _find(kind, name)
    tree = _read(path)
    for dotted, value in overrides.items():
        _assign(tree, dotted, value)
    try:
        value = settings_type.model_validate(tree)
    except ValidationError as e:
        raise UserError(_explain(path, settings_type, e, overrides)) from e
    return Loaded(name=path.stem, path=path, value=value, overrides=overrides)


def _find(kind: str, name: str) -> Path:
    if len(os.fsencode(Path(name).name)) > _MAX_NAME_BYTES or "\0" in name:
        raise UserError(f"{kind}: {name[:40]!r}...: no file can have such a name; names are {', '.join(names(kind))}")
    if name.endswith(".toml"):
        path = Path(name)
        if not path.is_file():
            raise UserError(f"{path}: no such file; {kind} by name are {', '.join(names(kind))}")
        return path
    for folder in _folders():
        path = folder / kind / f"{name}.toml"
        if path.is_file():
            return path
    known = names(kind)
    noun = "--model" if kind == "models" else "--site"
    raise UserError(f"{noun}: got {name!r}{_meant(name, known)}; allowed are {', '.join(known)} and a file NAME.toml")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise UserError(f"{path}: not TOML: {e}") from e
    except RecursionError as e:
        raise UserError(f"{path}: nested too deeply") from e


def _parse_set(word: str) -> tuple[str, Any]:
    path, equals, text = word.partition("=")
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", path):
        raise UserError(f"--set: got {word!r}, allowed is path=value, as in --set train.steps=200")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    except RecursionError as e:
        raise UserError(f"--set {path}: nested too deeply") from e
    _check_text(f"--set {path}", value)
    return path, value


def _check_text(where: str, value: Any) -> None:
    """Half a surrogate pair and bytes that are no UTF-8 cannot be written anywhere."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        raise UserError(f"{where}: holds what is no text in UTF-8: {e.object[e.start : e.end]!r}") from e


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise UserError(f"--set {dotted}: {part} is a value, not a section")
    tree[last] = value


def _has(tree: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True


def _explain(path: Path, settings_type: type[BaseModel], error: ValidationError, overrides: Mapping[str, Any]) -> str:
    # an unknown key is told first: it may be the missing one, misspelt
    problem = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    parts = [str(part) for part in problem["loc"]]
    dotted = ".".join(parts)
    where = "--set" if any(dotted == o or dotted.startswith(o + ".") for o in overrides) else str(path)
    if problem["type"] == "extra_forbidden":
        known = _fields(settings_type, parts[:-1])
        return f"{where}: {dotted}: unknown key{_meant(parts[-1], known)}; allowed are {', '.join(known)}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{where}: {dotted}: missing; it must be set"
    if problem["type"] == "value_error":  # of several values, so that no path says which of them --set gave
        sets = f", with --set {', '.join(overrides)}" if overrides else ""
        return f"{path}{sets}: {'.'.join(parts)}{': ' if parts else ''}{message}"
    message = _NOT_TOML.get(problem["type"], message)
    return f"{where}: {dotted}: got {problem['input']!r}; {message[0].lower()}{message[1:]}"


def _fields(settings_type: type[BaseModel], path: Iterable[str]) -> list[str]:
    for part in path:
        annotation = settings_type.model_fields[part].annotation
        assert isinstance(annotation, type)
        settings_type = annotation
    return list(settings_type.model_fields)


def _meant(got: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(got, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def open_site_store(site: Site) -> "Store":
    """The site's store, reached by this process as its steps reach it: endpoint, region, certificates and
    checksums of [store] go into the environment, over what is there. Credentials come by AWS_* as usual.

    Raises:
        UserError: the URI is no store's.
    """
    from steps.lib.store import open_store

    uri = store_uri(site)
    env = site.s3_env(uri)
    if site.engine == "argo" and not Path(site.store.ca_bundle).is_file():  # a path of the pods: here it is the user's
        env.pop("AWS_CA_BUNDLE", None)
    os.environ.update(env)
    return open_store(uri)
