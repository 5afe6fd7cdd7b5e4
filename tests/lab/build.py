"""Build the programs and manifests of versions.py from Go modules, into the cache; what is there is not built again.

    python -m tests.lab.build [NAME ...]     all programs and manifests, or only these programs

Manifests are made by `kubectl kustomize` from the same modules, each with its project's licence beside it. CRDs get
files of their own: Argo's alone have 180,000 lines, which only kubectl should read.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.lab import step_images
from tests.lab.places import BIN, CACHE, MANIFESTS
from tests.lab.versions import ARGO, JOBSET, KUBERNETES, KUEUE, KWOK, PROGRAMS, TRAINER, Program

DEBIAN = (
    "containerd",
    "runc",
    "nftables",
    "iproute2",
    "containernetworking-plugins",
    "openssl",
    "debootstrap",
    "buildah",
)
_COMMANDS = ("containerd", "runc", "nft", "ip", "openssl", "debootstrap", "buildah")
_ENV = {"CGO_ENABLED": "0", "GOFLAGS": "-trimpath -buildvcs=false"}


def build(names: Sequence[str] = ()) -> None:
    """Build what is missing; everything when `names` is empty."""
    if not shutil.which("go"):
        sys.exit("error: go is not installed; the lab and `make tools` need Go 1.26 or newer (make test does not)")
    BIN.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        if not names or program.name in names:
            _program(program)
    if not names:
        _own("pause")
        _own("probe")
        _debian()
        _manifests()
        _step_images()


def _program(program: Program) -> None:
    if _is_built(program.name, f"{program.module}@{program.version}"):
        return
    print(f"building {program.name} {program.version}", flush=True)
    folder = _source(program)
    out = BIN / f"{program.name}.new"
    _go(folder, "build", "-ldflags", program.ldflags, "-o", str(out), program.package)
    out.rename(BIN / program.name)
    if program.name == "argo":
        shutil.rmtree(BIN / "crds", ignore_errors=True)
        shutil.copytree(folder / "manifests/base/crds/full", BIN / "crds")
    (BIN / f".{program.name}.version").write_text(f"{program.module}@{program.version}\n")


def _own(name: str) -> None:
    """A program whose source is beside this file."""
    source = Path(__file__).parent / name / "main.go"
    program = BIN / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        _go(source.parent, "build", "-ldflags", "-s -w", "-o", str(program), source.name)


def _is_built(name: str, version: str) -> bool:
    marker = BIN / f".{name}.version"
    return marker.exists() and marker.read_text().strip() == version and (BIN / name).exists()


def _source(program: Program) -> Path:
    """A folder in which `go build PACKAGE` works."""
    folder = CACHE / "src" / f"{program.module.replace('/', '_')}@{program.version}"
    if folder.exists():
        return folder
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    if program.module == ARGO[0]:
        _argo_source(new)
    else:
        new.mkdir(parents=True)
        if program.module == "k8s.io/kubernetes":
            (new / "go.mod").write_text(_kubernetes_module())
            _go(new, "mod", "tidy")
        else:
            _go(new, "mod", "init", "lab")
            _go(new, "get", "-tool", f"{program.package}@{program.version}")
    new.rename(folder)
    return folder


def _kubernetes_module() -> str:
    """A go.mod that requires k8s.io/kubernetes and has its staging modules by their published versions."""
    listed = json.loads(_go(CACHE, "list", "-m", "-json", f"k8s.io/kubernetes@{KUBERNETES}"))
    staged = re.findall(r"^\s*(k8s\.io/\S+) => \./staging", Path(listed["GoMod"]).read_text(), re.MULTILINE)
    version = "v0." + KUBERNETES.split(".", 1)[1]
    replaces = "".join(f"\t{module} => {module} {version}\n" for module in staged)
    tools = "".join(f"\t{p.package}\n" for p in PROGRAMS if p.module == "k8s.io/kubernetes")
    return f"module lab\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes {KUBERNETES}\n\nreplace (\n{replaces})\n\ntool (\n{tools})\n"


def _argo_source(folder: Path) -> None:
    """Argo's module lacks a symbolic link and the built web page, which its server embeds."""
    shutil.copytree(module_folder(*ARGO), folder, copy_function=shutil.copy)
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.copy(
        folder / "workflow/executor/osspecific/signal_darwin.go",
        folder / "workflow/executor/osspecific/signal_linux.go",
    )
    page = folder / "ui/dist/app/index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n")


def module_folder(module: str, version: str) -> Path:
    """Where Go keeps the sources of a module."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return Path(json.loads(_go(CACHE, "mod", "download", "-json", f"{module}@{version}"))["Dir"])


def _go(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["go", *words], cwd=folder, env={**os.environ, **_ENV}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"error: go {' '.join(words)} in {folder}: exit code {done.returncode}")
    return done.stdout


def _debian() -> None:
    """containerd and what else comes from Debian."""
    if all(shutil.which(command) for command in _COMMANDS) and Path("/usr/lib/cni/bridge").exists():
        return
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *DEBIAN]
    if os.geteuid() or not shutil.which("apt-get"):
        sys.exit(f"error: the lab needs Debian's {', '.join(DEBIAN)}; as root: {' '.join(install)}")
    print(" ".join(install), flush=True)
    subprocess.run(["apt-get", "update", "-qq"], check=True)
    subprocess.run(
        install, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    )


def _manifests() -> None:
    versions = " ".join("@".join(module) for module in (ARGO, KUEUE, JOBSET, KWOK, TRAINER))
    marker = MANIFESTS / ".version"
    if marker.exists() and marker.read_text() == versions:
        return
    print("generating manifests", flush=True)
    MANIFESTS.mkdir(parents=True, exist_ok=True)
    argo = CACHE / "src" / f"{ARGO[0].replace('/', '_')}@{ARGO[1]}"
    _kustomize("argo", argo / "manifests/cluster-install", ARGO)
    _kustomize("kueue", module_folder(*KUEUE) / "config/default", KUEUE)
    _kustomize("jobset", module_folder(*JOBSET) / "config/default", JOBSET)
    _kustomize("kwok", module_folder(*KWOK) / "kustomize/crd", KWOK)
    _kustomize("kwok-stages", module_folder(*KWOK) / "kustomize/stage/fast", KWOK)
    trainer = CACHE / "src/trainer-manifests"
    shutil.rmtree(trainer, ignore_errors=True)
    shutil.copytree(module_folder(*TRAINER) / "manifests", trainer, copy_function=shutil.copy)
    subprocess.run(["chmod", "-R", "u+w", str(trainer)], check=True)
    overlay = trainer / "overlays/manager/kustomization.yaml"
    lines = overlay.read_text().splitlines()
    overlay.write_text("\n".join(line for line in lines if "third-party/jobset" not in line) + "\n")
    _kustomize("trainer", trainer / "overlays/manager", TRAINER)
    marker.write_text(versions)


def _step_images() -> None:
    for name in step_images.NAMES:
        if step_images.built(name) is None:
            print(f"building image {name}", flush=True)
            step_images.archive(name)


def _kustomize(name: str, folder: Path, module: tuple[str, str]) -> None:
    done = subprocess.run([str(BIN / "kubectl"), "kustomize", str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: kustomize {folder}: {done.stderr}")
    definitions: list[str] = []
    rest: list[str] = []
    for document in done.stdout.split("\n---\n"):
        (definitions if "\nkind: CustomResourceDefinition\n" in document else rest).append(document)
    for part, documents in {f"{name}-crds": definitions, name: rest}.items():
        text = "\n---\n".join(documents)
        (MANIFESTS / f"{part}.yaml").write_text(f"# generated from {module[0]}@{module[1]}\n{text}\n")
    for licence in module_folder(*module).glob("LICENSE*"):
        shutil.copyfile(licence, MANIFESTS / f"{name}.{licence.name}")


if __name__ == "__main__":
    build(sys.argv[1:])
