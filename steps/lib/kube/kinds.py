"""The kinds of Kubernetes objects that the product touches, and where the API keeps them."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Kind:
    """A kind of object, and where the API keeps it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str, name: str = "") -> str:
        """Path of a collection, or of one object."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        place = f"/namespaces/{quote(namespace)}" if self.namespaced and namespace else ""
        return f"{root}{place}/{self.plural}" + (f"/{quote(name)}" if name else "")


POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE = Kind("v1", "Service", "services")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
JOB = Kind("batch/v1", "Job", "jobs")
WORKFLOW = Kind("argoproj.io/v1alpha1", "Workflow", "workflows")
CRON_WORKFLOW = Kind("argoproj.io/v1alpha1", "CronWorkflow", "cronworkflows")
WORKFLOW_TEMPLATE = Kind("argoproj.io/v1alpha1", "WorkflowTemplate", "workflowtemplates")
CLUSTER_WORKFLOW_TEMPLATE = Kind(
    "argoproj.io/v1alpha1", "ClusterWorkflowTemplate", "clusterworkflowtemplates", namespaced=False
)
JOBSET = Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
TRAINJOB = Kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
CLUSTER_TRAINING_RUNTIME = Kind(
    "trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "clustertrainingruntimes", namespaced=False
)
WORKLOAD = Kind("kueue.x-k8s.io/v1beta2", "Workload", "workloads")
LOCAL_QUEUE = Kind("kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues")
CLUSTER_QUEUE = Kind("kueue.x-k8s.io/v1beta2", "ClusterQueue", "clusterqueues", namespaced=False)
RESOURCE_FLAVOR = Kind("kueue.x-k8s.io/v1beta2", "ResourceFlavor", "resourceflavors", namespaced=False)
WORKLOAD_PRIORITY_CLASS = Kind(
    "kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False
)
CUSTOM_RESOURCE = Kind(
    "apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False
)
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False)
