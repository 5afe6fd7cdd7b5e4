"""Twelve servers of eight GPUs that KWOK plays on the gpu cluster: pods on them are Running and do nothing."""

import json
from typing import Any

import yaml

from tests.lab.cluster import kubectl
from tests.lab.install import define
from tests.lab.places import BIN, GPU, MANIFESTS
from tests.lab.processes import start

Object = dict[str, Any]
NUM_NODES, NUM_GPUS = 12, 8
COMPLETE = "tripod.dev/fake-complete"
"""Annotation of a pod that is to end at once. Without it a pod runs until it is deleted, as a long training job does:
KWOK's own stage would end every Job's pod at once, and Kueue would report node failures."""
NOT_READY = "tripod.dev/fake-not-ready"
"""Annotation of a node that KWOK is not to make ready again."""
_SELECTOR = "kwok.x-k8s.io/node=fake"


def up() -> None:
    """Make the nodes that are missing, and start KWOK. Nodes that are there keep the side that they have."""
    define(GPU, "kwok")
    names = kubectl(GPU, "get", "nodes", "-o", "name").split()
    missing = [node(n) for n in range(1, NUM_NODES + 1) if f"node/{_name(n)}" not in names]
    if missing:
        kubectl(GPU, "create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": missing}))
    stages = [stage for stage in yaml.safe_load_all((MANIFESTS / "kwok-stages.yaml").read_text()) if stage]
    for stage in stages:
        if stage["metadata"]["name"] == "pod-complete":
            stage["spec"]["selector"]["matchAnnotations"] = {COMPLETE: "true"}
        if stage["metadata"]["name"] == "node-initialize":
            kept_out = {"key": f'.metadata.annotations["{NOT_READY}"]', "operator": "DoesNotExist"}
            stage["spec"]["selector"]["matchExpressions"].append(kept_out)
    (GPU.folder / "stages.yaml").write_text(yaml.safe_dump_all(stages))
    start(
        GPU.folder,
        "kwok",
        [
            BIN / "kwok", f"--kubeconfig={GPU.kubeconfig}", f"--config={GPU.folder}/stages.yaml",
            "--manage-all-nodes=false", f"--manage-nodes-with-annotation-selector={_SELECTOR}",
            "--node-lease-duration-seconds=40",
        ],
        netns=GPU.netns,
    )  # fmt: skip


def node(number: int) -> Object:
    """One fake server: four racks of three in two blocks, all on the training side."""
    rack = (number - 1) // 3
    labels = {
        "kubernetes.io/hostname": _name(number),
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "tripod.dev/side": "training",
        "tripod.dev/block": f"block-{rack // 2 + 1}",
        "tripod.dev/rack": f"rack-{rack + 1}",
    }
    resources = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(NUM_GPUS)}
    key, value = _SELECTOR.split("=")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": _name(number), "labels": labels, "annotations": {key: value}},
        "spec": {"taints": [{"key": "tripod.dev/side", "value": "training", "effect": "NoSchedule"}]},
        "status": {"capacity": resources, "allocatable": resources},
    }


def _name(number: int) -> str:
    return f"b300-{number}"
