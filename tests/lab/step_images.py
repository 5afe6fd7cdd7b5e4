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
_MIRROR = "http://deb.debian.org/debian"
_HELD = ("constraints.txt", "images", "steps/__main__.py", "steps/lib/tree.py")
"""What decides about an image's libraries and its start, with pyproject.toml's [project]."""


def archive(name: str) -> Path:
    """The image `name` (data, train or serve) as a docker archive, built when there is none like it."""
    if (path := built(name)) is not None:
        return path
    path = _path(name)
    _base()
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob(f"{name}-*.tar"):
        old.unlink()
    settings = CACHE / "images/build.env"
    settings.write_text(
        "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\nPIP_CERT=/etc/ssl/certs/ca-certificates.crt\n"
    )
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    env = {"BASE": BASE, "REGISTRY": "localhost/tripod-lab", "TAG": "1", "BUILD_ENV": str(settings), "WHEELS": wheels}
    run("bash", ROOT / "images/build.sh", name, env={**env, "BUILD_CERTS": "/etc/ssl/certs"})
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    run("buildah", "push", f"localhost/tripod-lab/{name}:1", f"docker-archive:{new}:tripod/{name}:1")
    new.rename(path)
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
    if BASE in run("buildah", "images", "--format", "{{.Name}}:{{.Tag}}"):
        return
    root = CACHE / "root"
    if not (root / "usr/bin/python3").exists():
        shutil.rmtree(root, ignore_errors=True)
        packages = "python3,python3-venv,ca-certificates,procps"
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root, _MIRROR)
    container = run("buildah", "from", "scratch").strip()
    run("buildah", "add", "-q", container, root, "/")
    run("buildah", "commit", "-q", container, BASE)
    run("buildah", "rm", container)
