"""The researcher's sources, packed by digest, so that pods run what was edited a moment ago without an image build.

    pack      steps/ of a tree -> bytes; the same files give the same bytes
    start     in a pod: unpack $TRIPOD_TREE and start this process anew from there

Images hold the libraries and an installed copy of the sources; a tree replaces that copy.
"""

import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from steps.lib.digest import sha256_hex
from steps.lib.errors import UserError
from steps.lib.folder import put_blob
from steps.lib.store import NotFoundError, Store, open_store

PACKAGE = "steps"
_STARTED = "TRIPOD_TREE_STARTED"
"""The tree that this process was started from."""


def root() -> Path:
    """The folder whose `steps` this process runs."""
    return Path(__file__).resolve().parents[2]


def pack(root: Path) -> bytes:
    """The package `steps` below `root` as a tar: its files, sorted, without times and owners.

    Raises:
        UserError: there is no such package.
    """
    files = sorted(path for path in (root / PACKAGE).rglob("*") if _belongs(path))
    if not files:
        raise UserError(f"{root / PACKAGE}: no sources there; run from the project's folder")
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in files:
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            content = path.read_bytes()
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


def _belongs(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")


def publish(store: Store, env: Mapping[str, str]) -> str:
    """Digest of the sources that this process runs from, for pods that it starts: in the store once this returns."""
    return env.get("TRIPOD_TREE") or put_blob(store, pack(root())).sha256


def start(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Become `python -m steps` of the tree that $TRIPOD_TREE names; return 0 when there is none, or this is it.

    Raises:
        UserError: the tree is not in the store, or what is there has another digest.
    """
    digest = env.get("TRIPOD_TREE", "")
    if not digest or env.get(_STARTED) == digest:
        return 0
    folder = fetch(env["TRIPOD_STORE"], digest, Path(env.get("TRIPOD_SCRATCH") or tempfile.gettempdir()))
    paths = [str(folder), *filter(None, [env.get("PYTHONPATH", "")])]
    os.chdir(folder)  # `python -m` looks there first
    os.execve(
        sys.executable,
        [sys.executable, "-m", "steps", *argv],
        {**env, _STARTED: digest, "PYTHONPATH": os.pathsep.join(paths)},
    )


def fetch(store_uri: str, digest: str, parent: Path) -> Path:
    """The tree `digest` as a folder below `parent`, whole or not at all.

    Raises:
        UserError: it is not in the store, or what is there has another digest.
    """
    folder = parent / f"tripod-tree-{digest[:16]}"
    if folder.is_dir():
        return folder
    key = f"blobs/sha256/{digest}"
    try:
        data = open_store(store_uri).get(key)
    except NotFoundError as e:
        raise UserError(f"TRIPOD_TREE: {key} is not in {store_uri}; submit the run anew") from e
    if sha256_hex(data) != digest:
        raise UserError(f"TRIPOD_TREE: {key} in {store_uri} holds other bytes than its name says; submit the run anew")
    scratch = tempfile.mkdtemp(dir=parent)
    _unpack(data, Path(scratch))
    try:
        os.rename(scratch, folder)
    except OSError:  # another process of this pod was first
        shutil.rmtree(scratch)
        if not folder.is_dir():
            raise
    return folder


def _unpack(data: bytes, folder: Path) -> None:
    """Files alone: a tar may hold what nobody packed."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for entry in tar:
            content = tar.extractfile(entry) if entry.isfile() else None
            if content and ".." not in Path(entry.name).parts and not entry.name.startswith("/"):
                target = folder / entry.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
