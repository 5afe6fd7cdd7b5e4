"""A site, `config/sites/NAME.toml`: where workflows run and where the data is."""

import os
from collections.abc import Sequence
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from pipelines.settings.base import Settings
from steps.contract import Step
from steps.lib.errors import UserError

S3_FOLDER, GPU_FOLDER = "/var/run/tripod/s3", "/var/run/tripod/gpu"
"""Where pods have the store's credentials, and token and CA for the GPU cluster."""


class StoreSettings(Settings):
    """[store]: credentials are not settings, they come by the usual AWS_* environment."""

    uri: str = ""
    """file:///folder or s3://bucket/prefix. Empty: $TRIPOD_STORE, else a folder in the user's data directory."""
    endpoint: str = ""
    """URL of the S3 server; empty for the client's default."""
    region: str = ""
    """Empty for the client's default: $AWS_REGION, $AWS_DEFAULT_REGION, the profile's, us-east-1."""
    ca_bundle: str = ""
    """File with the CA certificates that the endpoint is checked against; empty for the system's. With engine argo it is
    one of the pods: a machine that has no such file takes $AWS_CA_BUNDLE."""
    wait_s: int = Field(45 * 60, ge=0)
    """How long a training waits for a store that is away before it gives the machines back, seconds."""
    checksums: Literal["when_required", "when_supported"] = "when_required"
    """When clients send the newer x-amz-checksum headers; some S3 servers refuse them."""


class CacheSettings(Settings):
    """[cache]"""

    verify: Literal["head", "full"] = "head"
    """How a recorded result is checked: sizes by HEAD, or every byte."""


class RunSettings(Settings):
    """[run]: how a workflow is run."""

    max_parallel: int = Field(2, ge=1)
    """Steps at a time."""
    retries: int = Field(2, ge=0)
    """How often a step is tried again after a code that may be retried."""
    backoff_s: int = Field(5, ge=0)
    """Wait before the first retry, doubled each time, seconds."""
    notify: bool = False
    """Tell the webhook in $TRIPOD_WEBHOOK_URL how each run ended."""
    grace_s: int = Field(60, ge=1)
    """From asking a step to stop to killing it, seconds; training saves a checkpoint in it."""


class GangSettings(Settings):
    """[gang]: the processes that train together."""

    target: Literal["process", "kubernetes"] = "process"
    """process: on the machine that runs the step; kubernetes: a TrainJob on the GPU cluster."""
    device: Literal["cpu", "cuda"] = "cpu"
    backend: Literal["gloo", "nccl"] = "gloo"
    processes_per_node: int = Field(1, ge=1)
    threads: int = Field(0, ge=0)
    """CPU threads a process; 0: cores divided by processes."""
    peak_tflops: float = Field(0, ge=0)
    """Of one device at the recipe's precision, for MFU; 0: unknown, MFU is not shown."""
    device_memory_gib: float = Field(0, ge=0)
    """Of one device; 0: unknown, not checked."""


class InferenceSettings(Settings):
    """[inference]: the servers of models."""

    target: Literal["process", "kubernetes"] = "process"
    """process: on the machine that runs the step; kubernetes: a Deployment on the GPU cluster."""
    device: Literal["cpu", "cuda"] = "cpu"
    nodes: dict[str, str] = Field({"tripod.dev/side": "inference"})
    """Labels of the nodes that serve, on the GPU cluster; of them tripod.dev/side is tolerated as a taint too."""


class ImageSettings(Settings):
    """[images]: by digest where the site's policy asks for it. Empty: $TRIPOD_IMAGE_DATA, _TRAIN, _SERVE."""

    pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    data: str = "tripod/data"
    train: str = "tripod/train"
    serve: str = "tripod/serve"


class ArgoSettings(Settings):
    """[argo]: the Compute cluster. Credentials of people come by a kubeconfig, or a token in $ARGO_TOKEN."""

    namespace: str = "default"
    """The team's namespace."""
    service_account: str = "tripod-workflow"
    """That the pods of steps run as."""
    kubeconfig: str = ""
    """File; empty: $TRIPOD_COMPUTE_KUBECONFIG, else $KUBECONFIG, else ~/.kube/config."""
    context: str = ""
    """In that file; empty: its current one."""
    server: str = ""
    """URL of an Argo server to submit through, with the token in $ARGO_TOKEN; empty: the Kubernetes API."""
    ca_bundle: str = ""
    """File with the CA certificates that that server is checked against; empty for the system's."""
    max_cpus: float = Field(0, ge=0)
    """Most CPUs that the pod of a step asks for, where nodes have fewer than a step would like; 0: as the step says."""
    s3_secret: str = "tripod-s3"
    """Secret in the team's namespaces with the store's credentials: key `credentials`, a file as the AWS clients read it."""


class GpuSettings(Settings):
    """[gpu]: the GPU cluster, where TrainJobs and servers run when gang.target is kubernetes."""

    server: str = ""
    """URL of its API server, which trusts the projected tokens of Compute's pods."""
    ca_config_map: str = "tripod-gpu-ca"
    """ConfigMap in the team's namespace on Compute with that server's CA, key `ca.crt`."""
    audience: str = "gpu-cluster"
    """That the tokens are made out for."""
    kubeconfig: str = ""
    """File, for people and for tests; empty: $TRIPOD_GPU_KUBECONFIG."""
    context: str = ""
    namespace: str = "default"
    """The team's namespace there."""
    queue: str = "default"
    """The team's LocalQueue."""
    priority: str = ""
    """WorkloadPriorityClass; empty: the cluster's default."""
    runtime: str = "tripod-train"
    """ClusterTrainingRuntime that the platform has installed."""
    gpus_per_node: int = Field(8, ge=1)
    """Nodes go whole: what one training pod asks for."""


class Profile(Settings):
    """[capacity.profiles.NAME]: how many GPUs train and how many serve."""

    training: int = Field(ge=0)
    inference: int = Field(ge=0)
    start: str = Field("", pattern=r"^(([01]\d|2[0-3]):[0-5]\d)?$")
    """HH:MM at which it begins each day; empty: by hand only."""


class CapacitySettings(Settings):
    """[capacity]: who has the GPUs when."""

    zone: str = "UTC"
    """IANA name of the time zone that profiles begin by."""
    profiles: dict[str, Profile] = Field(default_factory=dict)
    """None: the GPUs change sides by no plan."""

    @field_validator("zone")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ValueError, OSError, KeyError) as e:
            raise ValueError(
                f"capacity.zone is {value}, allowed are IANA names such as Europe/Berlin (the package tzdata has them "
                "where the system does not)"
            ) from e
        return value


class Site(Settings):
    """A whole site."""

    engine: Literal["local", "argo"]
    """local: on this machine; argo: Argo Workflows on the Compute cluster."""
    store: StoreSettings = StoreSettings()
    cache: CacheSettings = CacheSettings()
    run: RunSettings = RunSettings()
    gang: GangSettings = GangSettings()
    inference: InferenceSettings = InferenceSettings()
    images: ImageSettings = ImageSettings()
    argo: ArgoSettings = ArgoSettings()
    gpu: GpuSettings = GpuSettings()
    capacity: CapacitySettings = CapacitySettings()

    @model_validator(mode="after")
    def _backend_fits(self) -> "Site":
        if (self.gang.device == "cuda") != (self.gang.backend == "nccl"):
            raise ValueError(
                f"gang.backend is {self.gang.backend} with gang.device {self.gang.device}, allowed are gloo with cpu and nccl with cuda"
            )
        for name, profile in self.capacity.profiles.items():
            for side, gpus in (("training", profile.training), ("inference", profile.inference)):
                if gpus % self.gpu.gpus_per_node:
                    raise ValueError(
                        f"capacity.profiles.{name}.{side} is {gpus}, allowed are multiples of gpu.gpus_per_node, "
                        f"{self.gpu.gpus_per_node}: nodes go whole"
                    )
        return self

    @property
    def uses_gpu_cluster(self) -> bool:
        """Whether anything of it runs there."""
        return "kubernetes" in (self.gang.target, self.inference.target)

    def launches(self, step: Step) -> bool:
        """Whether the step's own process only launches pods on the GPU cluster."""
        target = self.inference.target if step.image == "serve" else self.gang.target
        return step.launches and target == "kubernetes"

    def image(self, name: Literal["data", "train", "serve"]) -> str:
        """The image of a set of dependencies.

        Raises:
            UserError: neither the site nor the environment names one.
        """
        variable = f"TRIPOD_IMAGE_{name.upper()}"
        if found := getattr(self.images, name) or os.environ.get(variable, ""):
            return str(found)
        raise UserError(f"images.{name}: empty, and ${variable} is not set; build it with `make images` and name it")

    def step_env(self, store_uri: str, nodes: Sequence[int] = ()) -> dict[str, str]:
        """The environment of every step on this site, in a fixed order. No secrets.

        Args:
            nodes: numbers of servers that the training may run on.
        """
        env = {
            "TRIPOD_STORE": store_uri,
            "TRIPOD_CACHE_VERIFY": self.cache.verify,
            "TRIPOD_TRAIN_TARGET": self.gang.target,
            "TRIPOD_DEVICE": self.gang.device,
            "TRIPOD_BACKEND": self.gang.backend,
            "TRIPOD_NPROC": str(self.gang.processes_per_node),
            "TRIPOD_THREADS": str(self.gang.threads) if self.gang.threads else "",
            "TRIPOD_GRACE_S": str(self.run.grace_s),
            "TRIPOD_STORE_WAIT_S": str(self.store.wait_s),
            "TRIPOD_PEAK_TFLOPS": str(self.gang.peak_tflops) if self.gang.peak_tflops else "",
        }
        if self.uses_gpu_cluster:
            env |= {
                "TRIPOD_GPU_SERVER": self.gpu.server,
                "TRIPOD_GPU_CA": f"{GPU_FOLDER}/ca.crt",
                "TRIPOD_GPU_TOKEN": f"{GPU_FOLDER}/token",
                "TRIPOD_GPU_NAMESPACE": self.gpu.namespace,
                "TRIPOD_S3_SECRET": self.argo.s3_secret,
            }
        if self.gang.target == "kubernetes":
            env |= {
                "TRIPOD_GPU_QUEUE": self.gpu.queue,
                "TRIPOD_GPU_PRIORITY": self.gpu.priority,
                "TRIPOD_GPU_RUNTIME": self.gpu.runtime,
                "TRIPOD_GPUS_PER_NODE": str(self.gpu.gpus_per_node),
                "TRIPOD_GPU_NODES": ",".join(str(count) for count in nodes),
                "TRIPOD_GPU_LIMIT": str(max((p.training for p in self.capacity.profiles.values()), default="")),
                "TRIPOD_IMAGE_TRAIN": self.image("train"),
            }
        if self.inference.target == "kubernetes":
            env |= {
                "TRIPOD_SERVE_TARGET": self.inference.target,
                "TRIPOD_SERVE_DEVICE": self.inference.device,
                "TRIPOD_SERVE_NODES": ",".join(f"{key}={value}" for key, value in self.inference.nodes.items()),
                "TRIPOD_IMAGE_SERVE": self.image("serve"),
            }
        if self.engine == "argo":
            env["AWS_SHARED_CREDENTIALS_FILE"] = f"{S3_FOLDER}/credentials"
        return {name: value for name, value in env.items() if value} | self.s3_env(store_uri)

    def s3_env(self, store_uri: str) -> dict[str, str]:
        """How the store's S3 server is reached, for every process of ours; nothing for another kind of store."""
        if not store_uri.startswith("s3://"):
            return {}
        env = {
            "AWS_ENDPOINT_URL": self.store.endpoint,
            "AWS_REGION": self.store.region,
            "AWS_CA_BUNDLE": self.store.ca_bundle,
            "AWS_REQUEST_CHECKSUM_CALCULATION": self.store.checksums,
            "AWS_RESPONSE_CHECKSUM_VALIDATION": self.store.checksums,
        }
        return {name: value for name, value in env.items() if value}
