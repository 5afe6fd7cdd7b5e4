"""Published steps, on a double of the API server: versions that never change, self-contained templates."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.build import build
from pipelines.publish import main
from pipelines.published import published
from pipelines.settings.load import load, load_site
from steps.contract import load_step, step_names
from steps.lib.errors import UserError
from steps.lib.kube.kinds import CLUSTER_WORKFLOW_TEMPLATE, WORKFLOW_TEMPLATE
from steps.lib.store import open_store
from tests.kube.api import Api, serving

DIGEST = f"@sha256:{'0' * 64}"
IMAGES = [f"images.{name}=registry.internal/{name}{DIGEST}" for name in ("data", "train", "serve")]


def steps(*sets: str, **options: Any) -> dict[str, dict[str, Any]]:
    made = published(load_site("prod", [*IMAGES, *sets]).value, **options)
    return {template["metadata"]["labels"]["tripod/step"]: template for template in made}


def body(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["spec"]["templates"][0]
    return found


def test_every_step_is_published_with_all_its_parameters():
    made = steps()
    assert set(made) == {name.replace("_", "-") for name in step_names()}
    params = {p["name"]: p.get("default") for p in body(made["ingest"])["inputs"]["parameters"]}
    assert set(params) == set(load_step("ingest").Params.model_fields)
    assert params["source"] is None, "required"
    assert params["holdout_fraction"] == "0.01"


def test_it_is_the_template_of_the_pipeline_with_what_a_workflow_says_for_all_of_its_own():
    """What `train` builds, from the other side: equal but for inputs, and the volumes and the user of pods."""
    recipe, site = load("tiny", "prod", IMAGES)
    workflow = yaml.safe_load(build(recipe, site, "r", tree="ab").to_yaml())["spec"]
    [there] = [t for t in workflow["templates"] if t["name"] == "step-ingest"]
    mine = body(steps(tree="ab")["ingest"])
    drop = ("name", "inputs", "volumes", "securityContext")
    there["container"].pop("args"), mine["container"].pop("args")
    env = [e for e in there["container"]["env"] if e["name"] != "TRIPOD_GPU_NODES"]
    assert {k: v for k, v in mine.items() if k not in drop} == {
        k: v for k, v in (there | {"container": there["container"] | {"env": env}}).items() if k not in drop
    }
    assert mine["securityContext"] == workflow["securityContext"]
    used = {mount["name"] for mount in mine["container"]["volumeMounts"]}
    assert mine["volumes"] == [volume for volume in workflow["volumes"] if volume["name"] in used]


def test_a_version_is_named_by_all_that_gives_it_its_meaning():
    first = steps(tree="ab")["train"]["metadata"]["name"]
    assert steps(tree="ab")["train"]["metadata"]["name"] == first
    others = [steps(tree="cd"), steps("gang.threads=2", tree="ab"), steps(f"images.train=registry.internal/x{DIGEST}")]
    assert len({first, *(other["train"]["metadata"]["name"] for other in others)}) == 4


def test_an_image_by_tag_is_refused():
    with pytest.raises(UserError, match=r"images.data: registry.internal/data:1 is named by a tag, which may change"):
        steps("images.data=registry.internal/data:1")


def test_for_all_teams_nothing_is_one_teams_own():
    made = steps(for_all=True)["train"]
    assert made["kind"] == "ClusterWorkflowTemplate"
    assert "namespace" not in made["metadata"]
    env = {e["name"]: e["value"] for e in body(made)["container"]["env"]}
    assert env["TRIPOD_STORE"] == "{{inputs.parameters.store}}"
    assert env["TRIPOD_GPU_NAMESPACE"] == "{{workflow.namespace}}"
    assert env["TRIPOD_GPU_NODES"] == "{{inputs.parameters.nodes}}"
    assert "TRIPOD_TREE" not in env
    assert "team-a" not in str(made)
    params = {p["name"]: p.get("default") for p in body(made)["inputs"]["parameters"]}
    assert (params["store"], params["nodes"]) == (None, "1")


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def sets(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """For the command: images, and the double as its cluster."""
    monkeypatch.setattr("pipelines.settings.load.open_site_store", lambda site: open_store(f"file://{tmp_path}/store"))
    with serving(api, tmp_path) as kubeconfig:
        values = [*IMAGES, f"argo.kubeconfig={kubeconfig}"]
        yield [word for value in values for word in ("--set", value)]


def test_publishing_again_changes_nothing(api, sets, capsys):
    assert main(["--site", "prod", *sets]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(step_names())
    assert all(line.startswith("new  templateRef: {name: tripod-") for line in lines)
    assert main(["--site", "prod", *sets]) == 0
    again = capsys.readouterr().out.splitlines()
    assert again == [line.replace("new  ", "there  ") for line in lines]
    assert len(api.created) == len(step_names())


def test_what_somebody_has_changed_is_not_taken_for_what_was_published(api, sets, capsys):
    assert main(["--site", "prod", *sets]) == 0
    api.of(WORKFLOW_TEMPLATE)[0]["spec"]["templates"][0]["container"]["image"] = "other"
    assert main(["--site", "prod", *sets]) == 2
    assert "somebody has changed what was published under that name" in capsys.readouterr().err


def test_for_all_and_the_dry_run(api, sets, capsys):
    assert main(["--site", "prod", "--for-all", "--dry-run", *sets]) == 0
    assert {t["kind"] for t in yaml.safe_load_all(capsys.readouterr().out)} == {"ClusterWorkflowTemplate"}
    assert api.asked == []
    assert main(["--site", "prod", "--for-all", *sets]) == 0
    assert "clusterScope: true}" in capsys.readouterr().out
    assert len(api.of(CLUSTER_WORKFLOW_TEMPLATE)) == len(step_names())


def test_a_site_without_a_cluster_has_nowhere_to_publish_to(capsys):
    assert main(["--site", "local"]) == 2
    assert "site local: runs on this machine; a site with engine argo has templates" in capsys.readouterr().err
