"""Argo itself accepts what we build: its full CRD schemas, and `argo lint --offline`."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import jsonschema
import pytest
import yaml

from pipelines.build import build
from pipelines.published import published
from pipelines.schedule import cron_workflow, tick_document
from pipelines.settings.load import load, load_site
from tests.pipelines.other_team import hera_dag, plain_dag

TOOLS = Path(os.environ.get("TRIPOD_TOOLS") or Path.home() / ".cache" / "tripod" / "bin")
ARGO = shutil.which("argo", path=f"{TOOLS}{os.pathsep}{os.environ['PATH']}")
CRDS = TOOLS / "crds"

pytestmark = pytest.mark.skipif(not (ARGO and CRDS.exists()), reason="needs argo and its CRDs: make tools")


@pytest.fixture(params=[("tiny", "local"), ("llama3-8b", "prod")], ids=lambda p: "-".join(p))
def text(request) -> str:
    return build(*load(*request.param), run_id="run-1").to_yaml()


def test_full_crd_schema(text):
    _validator().validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "path", ["spec", "spec.templates.0", "spec.templates.1.container", "spec.templates.0.dag.tasks.0"]
)
def test_a_misspelt_field_fails(text, path):
    tree = yaml.safe_load(text)
    place = tree
    for part in path.split("."):
        place = place[int(part) if part.isdecimal() else part]
    place["retryStrategi"] = {}
    with pytest.raises(jsonschema.ValidationError, match="retryStrategi"):
        _validator().validate(tree)


def test_lint(text, tmp_path):
    path = tmp_path / "workflow.yaml"
    path.write_text(text)
    done = _lint(path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lint_finds_a_wrong_reference(text, tmp_path):
    path = tmp_path / "workflow.yaml"
    path.write_text(text.replace("tasks.ingest.outputs.parameters.docs", "tasks.ingest.outputs.parameters.dox"))
    done = _lint(path)
    assert done.returncode != 0
    assert "dox" in done.stdout + done.stderr


def _lint(path: Path) -> subprocess.CompletedProcess[str]:
    assert ARGO
    return subprocess.run([ARGO, "lint", "--offline", str(path)], capture_output=True, text=True, check=False)


def published_steps() -> list[dict]:
    digest = f"@sha256:{'0' * 64}"
    images = [f"images.{name}=registry.internal/{name}{digest}" for name in ("data", "train", "serve")]
    return published(load_site("prod", images).value, tree="0" * 64)


def test_published_steps_are_templates_that_others_use_from_plain_yaml_and_from_hera(tmp_path):
    templates = published_steps()
    names = {t["metadata"]["labels"]["tripod/step"]: t["metadata"]["name"] for t in templates}
    for template in templates:
        _validator("workflowtemplates").validate(template)
        (tmp_path / f"{template['metadata']['name']}.yaml").write_text(yaml.safe_dump(template))
    (tmp_path / "plain.yaml").write_text(plain_dag(names))
    (tmp_path / "hera.yaml").write_text(hera_dag(names))
    done = _lint(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (tmp_path / "plain.yaml").write_text(plain_dag(names).replace("name: source", "name: sauce"))
    done = _lint(tmp_path)
    assert done.returncode != 0
    assert "source" in done.stdout + done.stderr


def test_a_schedule_is_a_cron_workflow(tmp_path):
    model, site = load("tiny", "prod")
    document = tick_document(model, site, "0" * 64)
    made = cron_workflow(document, schedule="30 2 * * mon-fri", zone="Europe/Berlin", shared="0" * 64)
    _validator("cronworkflows").validate(made)
    (tmp_path / "cron.yaml").write_text(yaml.safe_dump(made))
    done = _lint(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def _validator(plural: str = "workflows") -> jsonschema.Draft202012Validator:
    crd = yaml.load((CRDS / f"argoproj.io_{plural}.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return jsonschema.Draft202012Validator(_strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))


def _strict(schema: dict) -> dict:
    """A structural schema only prunes unknown fields; here they are errors."""
    schema = dict(schema)
    if schema.pop("x-kubernetes-int-or-string", False):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    if "properties" in schema:
        schema["properties"] = {name: _strict(part) for name, part in schema["properties"].items()}
        if schema["properties"].get("metadata") == {"type": "object"}:  # ObjectMeta, left open by every CRD
            schema["properties"]["metadata"] = {"type": "object"}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            schema["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        schema["items"] = _strict(schema["items"])
    return schema
