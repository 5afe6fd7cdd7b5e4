"""The conformance suite's workflows are Argo workflows, by Argo's own reading."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.engine.workflows import ALL

TOOLS = Path(os.environ.get("TRIPOD_TOOLS") or Path.home() / ".cache" / "tripod" / "bin")
ARGO = shutil.which("argo", path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")

pytestmark = pytest.mark.skipif(not ARGO, reason="needs argo: make tools")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """`argo lint` on all that is in a folder."""
    assert ARGO
    return subprocess.run([ARGO, "lint", "--offline", str(folder)], capture_output=True, text=True, check=False)


def test_argo_lints_every_workflow_of_the_suite(tmp_path):
    for name, build in ALL.items():
        document = build()
        document["metadata"]["name"] = name.replace("_", "-")
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document, allow_unicode=False))
    done = lint(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_argo_finds_a_wrong_reference(tmp_path):
    document = ALL["diamond"]()
    text = yaml.safe_dump(document).replace("tasks.b.outputs.parameters.value", "tasks.b.outputs.parameters.valu")
    (tmp_path / "wrong.yaml").write_text(text)
    assert lint(tmp_path).returncode != 0
