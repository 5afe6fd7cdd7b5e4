"""Images: there is no registry, so every one is imported into a cluster's containerd, by tag or by digest."""

import hashlib
import io
import json
import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.lab.places import BIN, CACHE, REGISTRY, Place
from tests.lab.processes import run

_FOLDERS = ("tmp", "etc", "bin", "run", "var", "var/run")


def of_files(name: str, files: Mapping[str, Path], entrypoint: list[str]) -> Path:
    """A docker archive of one layer that holds `files` (path in the image -> file); made once.

    Args:
        name: with a tag, below REGISTRY.
    """
    archive = CACHE / "images" / f"{name.replace('/', '_').replace(':', '_')}.tar"
    newest = max(file.stat().st_mtime for file in files.values())
    if archive.exists() and archive.stat().st_mtime > newest:
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:  # both clusters may want it at once
        _make(Path(folder), archive, name, files, entrypoint)
    return archive


def _make(folder: Path, archive: Path, name: str, files: Mapping[str, Path], entrypoint: list[str]) -> None:
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        for part in _FOLDERS:
            entry = tarfile.TarInfo(part)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if part == "tmp" else 0o755
            tar.addfile(entry)
        for path, file in files.items():
            entry = tar.gettarinfo(file, path.lstrip("/"))
            entry.mtime = 0
            with file.open("rb") as content:
                tar.addfile(entry, content)
    _archive(archive, f"{REGISTRY}/{name}", layer, entrypoint)


def _archive(archive: Path, name: str, layer: Path, entrypoint: list[str]) -> None:
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"], "User": "65532:65532"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "tests.lab"}],
    }
    described = json.dumps(config).encode()
    config_name = hashlib.sha256(described).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    new = layer.with_name("image.tar")
    with tarfile.open(new, "w") as tar:
        for path, data in {config_name: described, "manifest.json": json.dumps(manifest).encode()}.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        tar.add(layer, f"{digest}/layer.tar")
    new.rename(archive)


def of_program(program: str, version: str) -> Path:
    """An image with one static program, which is its entry point."""
    return of_files(f"{program}:{version}", {f"/bin/{program}": BIN / program}, [f"/bin/{program}"])


def load(place: Place, archive: Path) -> None:
    """Import by the names in the archive, unless it was imported as it is now."""
    marker = place.containerd_root / "imported" / archive.name
    stamp = f"{archive.stat().st_mtime_ns} {archive.stat().st_size}"
    if not marker.exists() or marker.read_text() != stamp:
        _ctr(place, "images", "import", str(archive))
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(stamp)


def load_by_digest(place: Place, archive: Path, name: str) -> str:
    """Import as REGISTRY/name@sha256:..., unless it was; that name. The name's older ones go."""
    base = f"{REGISTRY}/{name}"
    marker = place.containerd_root / "imported" / f"{archive.name}.digest"
    stamp = f"{archive.stat().st_mtime_ns} {archive.stat().st_size}"
    if marker.exists() and marker.read_text().startswith(stamp):
        return marker.read_text().split()[-1]
    said = _ctr(place, "images", "import", "--digests", "--base-name", base, str(archive))
    found = re.search(rf"{re.escape(base)}@sha256:[0-9a-f]{{64}}", said)
    assert found, said
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(f"{stamp} {found.group()}")
    _drop_layers(place, found.group().partition("@")[2])
    _remove_old(place, base)
    return found.group()


def _drop_layers(place: Place, digest: str) -> None:
    """Containers run from the unpacked layers; the packed ones, gigabytes each, are left to garbage collection."""
    (row,) = (line for line in _ctr(place, "content", "list").splitlines() if line.startswith(digest))
    labels = re.findall(r"containerd\.io/gc\.ref\.content\.l\.\d+", row)
    _ctr(place, "content", "label", digest, *(f"{label}=" for label in labels))
    _ctr(place, "content", "prune", "references")


def _remove_old(place: Place, base: str) -> None:
    markers = sorted((place.containerd_root / "imported").glob("*.digest"), key=lambda path: path.stat().st_mtime)
    of_base = [marker for marker in markers if f" {base}@" in marker.read_text()]
    for marker in of_base[:-1]:
        _ctr(place, "images", "remove", marker.read_text().split()[-1])
        marker.unlink()


def _ctr(place: Place, *words: str) -> str:
    return run("ctr", "--address", place.containerd_socket, "-n", "k8s.io", *words)
