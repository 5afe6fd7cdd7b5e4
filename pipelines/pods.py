"""What the pod of a step gets on a cluster: resources, identity, mounts. Nothing of it means anything to the local engine."""

from hera.workflows import Container
from hera.workflows.models import (
    Capabilities,
    ConfigMapProjection,
    EmptyDirVolumeSource,
    KeyToPath,
    PodSecurityContext,
    ProjectedVolumeSource,
    ResourceRequirements,
    SeccompProfile,
    SecretVolumeSource,
    SecurityContext,
    ServiceAccountTokenProjection,
    Volume,
    VolumeMount,
    VolumeProjection,
)

from pipelines.settings.site import GPU_FOLDER, S3_FOLDER, Site
from steps.contract import Step

USER_ID = 65532
"""The user of the images (images/), named `nonroot` there."""
_TOKEN_S = 3600
"""A projected token is renewed well before it ends."""


def security() -> PodSecurityContext:
    """Of every pod: no root."""
    return PodSecurityContext(
        run_as_non_root=True,
        run_as_user=USER_ID,
        run_as_group=USER_ID,
        fs_group=USER_ID,
        seccomp_profile=SeccompProfile(type="RuntimeDefault"),
    )


def equip(template: Container, step: Step, site: Site) -> None:
    """Give a step's template what its pod needs."""
    launches = site.launches(step)
    most, memory_gib = (1, 2) if launches else (step.cpus, step.memory_gib)
    cpus = min(most, site.argo.max_cpus or most)
    template.image_pull_policy = site.images.pull_policy
    template.resources = ResourceRequirements(
        requests={"cpu": f"{cpus:g}", "memory": f"{memory_gib}Gi"}, limits={"memory": f"{memory_gib}Gi"}
    )
    template.security_context = SecurityContext(
        allow_privilege_escalation=False, capabilities=Capabilities(drop=["ALL"])
    )
    volumes = {"tmp": "/tmp", "s3": S3_FOLDER} | ({"gpu": GPU_FOLDER} if launches else {})
    template.volume_mounts = [
        VolumeMount(name=name, mount_path=path, read_only=None if name == "tmp" else True)
        for name, path in volumes.items()
    ]


def volumes(site: Site) -> list[Volume]:
    """The volumes that the mounts name, once for the whole workflow."""
    scratch = Volume(name="tmp", empty_dir=EmptyDirVolumeSource())
    s3 = Volume(name="s3", secret=SecretVolumeSource(secret_name=site.argo.s3_secret))
    if not site.uses_gpu_cluster:
        return [scratch, s3]
    token = ServiceAccountTokenProjection(audience=site.gpu.audience, expiration_seconds=_TOKEN_S, path="token")
    ca = ConfigMapProjection(name=site.gpu.ca_config_map, items=[KeyToPath(key="ca.crt", path="ca.crt")])
    sources = [VolumeProjection(service_account_token=token), VolumeProjection(config_map=ca)]
    return [scratch, s3, Volume(name="gpu", projected=ProjectedVolumeSource(sources=sources))]
