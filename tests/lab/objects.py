"""Objects that the lab's own tests submit, in a namespace of their own beside the teams'."""

from typing import Any

Object = dict[str, Any]
NAMESPACE = "lab-test"
_SECURE = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
USER = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
"""Of pods in namespaces of the restricted level."""


def namespace() -> Object:
    """Without a team's label: no admission policies."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def chain(image: str) -> Object:
    """A Workflow of three steps; each says what the one before it said."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "lab-chain", "namespace": "team-a"},
        "spec": {
            "serviceAccountName": "tripod-workflow",
            "entrypoint": "main",
            "securityContext": USER,
            "templates": [
                {
                    "name": "main",
                    "dag": {
                        "tasks": [
                            _say("one", "1"),
                            _say("two", "{{tasks.one.outputs.parameters.said}}2", after="one"),
                            _say("three", "{{tasks.two.outputs.parameters.said}}3", after="two"),
                        ]
                    },
                },
                {
                    "name": "say",
                    "inputs": {"parameters": [{"name": "text"}]},
                    "outputs": {"parameters": [{"name": "said", "valueFrom": {"path": "/out/said"}}]},
                    "volumes": [{"name": "out", "emptyDir": {}}],
                    "container": {
                        "image": image,
                        "imagePullPolicy": "IfNotPresent",
                        "command": ["/bin/probe"],
                        "args": ["say", "{{inputs.parameters.text}}", "/out/said"],
                        "securityContext": _SECURE,
                        "volumeMounts": [{"name": "out", "mountPath": "/out"}],
                    },
                },
            ],
        },
    }


def _say(name: str, text: str, after: str = "") -> Object:
    task = {"name": name, "template": "say", "arguments": {"parameters": [{"name": "text", "value": text}]}}
    return {**task, "depends": after} if after else task


def queue(name: str, flavor: str, gpus: int) -> list[Object]:
    """A ClusterQueue of one flavor, and a LocalQueue of it."""
    quota = {"nvidia.com/gpu": gpus, "cpu": 1000}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    return [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
                "resourceGroups": [
                    {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}
                ],
            },
        },
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"clusterQueue": name},
        },
    ]


def runtime(image: str) -> Object:
    """What a TrainJob's pods run, when the TrainJob does not say."""
    container = {
        "name": "node",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/probe", "env", "PET_"],
        "securityContext": _SECURE,
    }
    # with the flavor's toleration alone Kueue evicts a running pod: it judges the node's taints by the pod's own
    stays = {"key": "tripod.dev/side", "value": "training", "effect": "NoSchedule"}
    pod = {"securityContext": USER, "tolerations": [stays], "containers": [container]}
    job = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"backoffLimit": 0, "template": {"spec": pod}},
        },
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": {"name": "lab", "namespace": NAMESPACE, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def train_job(name: str, queue: str, num_nodes: int) -> Object:
    """A job of whole servers: one pod of 8 GPUs on each."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kueue.x-k8s.io/queue-name": queue}},
        "spec": {
            "runtimeRef": {"name": "lab", "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"},
            "trainer": {
                "numNodes": num_nodes,
                "numProcPerNode": 8,
                "resourcesPerNode": {
                    "requests": {"nvidia.com/gpu": 8, "cpu": "100m"},
                    "limits": {"nvidia.com/gpu": 8},
                },
            },
        },
    }
