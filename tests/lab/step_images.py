"""The images of steps, built as `make images` builds them on a Debian root, and kept until what they hold changes.

The researcher's sources travel by digest (steps.lib.tree), so an edited step needs no new image.
"""

import hashlib
import json
import os
import shutil
import tomllib
from pathlib import Path

from tests.lab.places import CACHE, ROOT
from tests.lab.processes import run

NAMES = ("data", "train", "serve")
BASE = "localhost/tripod-lab/base:1"
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_MIRROR = "http://deb.debian.org/debian"
_HELD = ("constraints.txt", "images", "steps/__main__.py", "steps/lib/tree.py")
"""What decides about an image's libraries and its start, with pyproject.toml's [project]."""


def archive(name: str) -> Path:
    """The image `name` as a docker archive, built when there is none like it."""
    if (path := built(name)) is not None:
        return path
    path = _path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{name}-*"):
        old.unlink()
    _buildah("rm", "--all")  # of a build that was ended; they hold what is pruned below
    _base()
    settings = CACHE / "images/build.env"
    settings.write_text(f"SSL_CERT_FILE={_CERTIFICATES}\nPIP_CERT={_CERTIFICATES}\n")
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    if not list(Path(wheels or "/nowhere").glob("torch-*.whl")):
        print("PIP_FIND_LINKS is no folder with torch's CPU build: images of 6 GB with its CUDA build", flush=True)
    env = {"BASE": BASE, "REGISTRY": "localhost/tripod-lab", "TAG": "1", "BUILD_ENV": str(settings), "WHEELS": wheels}
    run("bash", ROOT / "images/build.sh", name, env={**_storage(), **env, "BUILD_CERTS": "/etc/ssl/certs"})
    new = path.with_suffix(".new")
    _buildah("push", "-q", f"localhost/tripod-lab/{name}:1", f"docker-archive:{new}:tripod/{name}:1")
    new.rename(path)
    _buildah("rmi", f"localhost/tripod-lab/{name}:1")  # only the archive is used again
    _buildah("rmi", "--prune")
    run("umount", CACHE / "buildah/overlay", check=False)  # buildah leaves it mounted
    return path


def built(name: str) -> Path | None:
    """The archive, when there is one of what the image is to hold now."""
    return _path(name) if _path(name).exists() else None


def _path(name: str) -> Path:
    return CACHE / "images" / f"{name}-{_version()}.tar"


def _version() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    digest = hashlib.sha256(json.dumps(project, sort_keys=True).encode())
    for name in _HELD:
        place = ROOT / name
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.is_file():
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def _base() -> None:
    """A Debian root with python3, as an image."""
    if BASE in _buildah("images", "--format", "{{.Name}}:{{.Tag}}"):
        return
    root = CACHE / "root"
    whole = root.with_name("root.whole")
    if not whole.exists():
        shutil.rmtree(root, ignore_errors=True)
        packages = "python3,python3-venv,ca-certificates,procps"
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root, _MIRROR)
        for folder in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / folder, ignore_errors=True)
        whole.touch()
    container = _buildah("from", "scratch").strip()
    _buildah("add", "-q", container, str(root), "/")
    _buildah("commit", "-q", container, BASE)
    _buildah("rm", container)


def _buildah(*words: str) -> str:
    return run("buildah", *words, env=_storage())


def _storage() -> dict[str, str]:
    """buildah's storage for the lab alone: what is pruned there is nobody else's."""
    file = CACHE / "images/storage.conf"
    file.parent.mkdir(parents=True, exist_ok=True)
    folder = CACHE / "buildah"
    file.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}"\nrunroot = "{folder}-run"\n')
    return {"CONTAINERS_STORAGE_CONF": str(file)}
