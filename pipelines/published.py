"""Steps as WorkflowTemplates: for DAGs of other teams, by templateRef from plain YAML or from Hera.

    templateRef: {name: tripod-ingest-3f0c9a51d2, template: ingest}

The name ends in a digest of all that gives the template its meaning: its image, sources, inputs and settings. So a
published version never changes its meaning, and publishing the same thing twice is one thing.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from hera.workflows import Parameter, WorkflowTemplate
from pydantic_core import PydanticUndefined

from pipelines import pods
from pipelines.settings.load import store_uri
from pipelines.settings.site import Site
from pipelines.tasks import literal, step_container
from steps.contract import load_step, step_names
from steps.lib.digest import digest_of
from steps.lib.errors import UserError
from steps.lib.kube import SPEC, Cluster, ExistsError, Kind, Object
from steps.lib.kube.kinds import CLUSTER_WORKFLOW_TEMPLATE, WORKFLOW_TEMPLATE

STORE = "store"
"""Parameter of a step that is published for all teams: each has a store of its own."""
NODES = "nodes"
"""Parameter of the train step: numbers of servers that it may run on, joined by commas."""
STEP = "tripod/step"
"""Label."""
_ID_CHARS = 10


def published(site: Site, *, tree: str = "", for_all: bool = False) -> list[Object]:
    """The template of every step, each a WorkflowTemplate, or a ClusterWorkflowTemplate `for_all` teams.

    Args:
        tree: digest of the sources that pods run; "": those in their images, as it must be `for_all`: what is in
            one team's store is not in another's.

    Raises:
        UserError: an image is named by a tag, which may change its meaning.
    """
    return [_template(name, load_step(name), site, tree, for_all=for_all) for name in step_names()]


def _template(step_name: str, module: ModuleType, site: Site, tree: str, *, for_all: bool) -> Object:
    image = site.image(module.step.image)
    if "@sha256:" not in image:
        raise UserError(
            f"images.{module.step.image}: {image} is named by a tag, which may change its meaning; name it by digest, "
            "registry/name@sha256:..."
        )
    env = site.step_env(store_uri(site)) | ({"TRIPOD_TREE": tree} if tree else {})
    inputs = [_input(step_name, field, info) for field, info in module.Params.model_fields.items()]
    if for_all:  # the names of a team's namespaces are the same on both clusters
        env |= {"TRIPOD_STORE": f"{{{{inputs.parameters.{STORE}}}}}", "TRIPOD_GPU_NAMESPACE": "{{workflow.namespace}}"}
    if step_name == "train" and site.launches(module.step):
        env |= {"TRIPOD_GPU_NODES": f"{{{{inputs.parameters.{NODES}}}}}"}
    plain = step_name.replace("_", "-")
    container = step_container(plain, step_name, module, inputs, env, site)
    # what decides where a step runs is no field of its Params, so it is no word of its command either
    container.inputs = inputs + [
        parameter
        for name, parameter in ((STORE, Parameter(name=STORE)), (NODES, Parameter(name=NODES, default="1")))
        if any(f"{{{{inputs.parameters.{name}}}}}" == value for value in env.values())
    ]
    # what a workflow says for all its templates does not come along with a templateRef
    used = {mount.name for mount in container.volume_mounts or []}
    made: Object = WorkflowTemplate(name="x", templates=[container]).to_dict()
    template: dict[str, Any] = made["spec"]["templates"][0]
    template["securityContext"] = _plain(pods.security())
    template["volumes"] = [_plain(volume) for volume in pods.volumes(site) if volume.name in used]
    spec = {"templates": [template]}
    kind = CLUSTER_WORKFLOW_TEMPLATE if for_all else WORKFLOW_TEMPLATE
    meta: Object = {
        "name": f"tripod-{plain}-{digest_of(spec)[:_ID_CHARS]}",
        "labels": {STEP: plain, "app.kubernetes.io/managed-by": "tripod"},
        "annotations": {
            SPEC: digest_of(spec),
            "tripod/about": " ".join((module.__doc__ or "").split("\n\n")[0].split()),
        },
    }
    if not for_all:
        meta["namespace"] = site.argo.namespace
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, "spec": spec}


def _input(step_name: str, field: str, info: Any) -> Parameter:
    """A parameter; what may be left out has its default."""
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return Parameter(name=field)
    return Parameter(name=field, default=literal(step_name, field, default))


def _plain(model: Any) -> Object:
    found: Object = model.model_dump(exclude_none=True, by_alias=True, mode="json")
    return found


def publish(cluster: Cluster, templates: Sequence[Object]) -> list[bool]:
    """Create what is not there yet. Returns which were.

    Raises:
        UserError: one of that name is there with another content: somebody has changed it; or the cluster refuses.
    """
    return [_publish(cluster, template) for template in templates]


def _publish(cluster: Cluster, template: Object) -> bool:
    kind: Kind = CLUSTER_WORKFLOW_TEMPLATE if template["kind"] == CLUSTER_WORKFLOW_TEMPLATE.kind else WORKFLOW_TEMPLATE
    name, namespace = template["metadata"]["name"], template["metadata"].get("namespace", "")
    there = cluster.get(kind, namespace, name)
    new = there is None
    try:
        there = there or cluster.create(kind, template)
    except ExistsError:  # another publisher was faster, with something else
        there = cluster.get(kind, namespace, name)
    if there is None or there["spec"] != template["spec"]:
        raise UserError(
            f"{kind.kind} {name}: somebody has changed what was published under that name; ask the platform's "
            "operators to remove it, if nobody uses it"
        )
    return new
