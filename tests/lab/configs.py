"""The configuration files of one cluster: containerd, CNI, kubelet, CoreDNS, and whose tokens its API server trusts."""

import contextlib
import json
from pathlib import Path

from tests.lab.places import COMPUTE, GPU, Place

CGROUPS = Path("/sys/fs/cgroup")
ISSUER_DISCOVERY = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "service-account-issuer-discovery"},
    "roleRef": {
        "apiGroup": "rbac.authorization.k8s.io",
        "kind": "ClusterRole",
        "name": "system:service-account-issuer-discovery",
    },
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:unauthenticated"}],
}
"""Lets the other cluster's API server read the keys that this one's tokens are checked with."""
# restrict_oom_score_adj: some kernels withhold CAP_SYS_RESOURCE, and every sandbox would die.
# netns_mounts_under_state_dir, Root: the defaults are shared by all of the machine, in /run.
_CONTAINERD = """version = 2
root = "{place.containerd_root}"
state = "{place.containerd_state}"
[grpc]
  address = "{place.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "registry.lab.internal/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{place.folder}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{place.containerd_state}/runc"
"""
_COREFILE = """.:53 {{
  bind {place.ip}
  errors
  kubernetes cluster.local in-addr.arpa ip6.arpa {{
    kubeconfig {place.pki}/dns.kubeconfig
    pods insecure
  }}
  cache 5
}}
"""


def write(place: Place) -> None:
    """All of them, into the cluster's folder."""
    folder = place.folder
    (folder / "cni").mkdir(exist_ok=True)
    (folder / "resolv.conf").touch()
    (folder / "cni/10-bridge.conflist").write_text(json.dumps(_cni(place)))
    (folder / "containerd.toml").write_text(_CONTAINERD.format(place=place))
    (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(place)))
    (folder / "Corefile").write_text(_COREFILE.format(place=place))
    if place == GPU:
        (folder / "authentication.yaml").write_text(json.dumps(_trust(COMPUTE)))


def make_cgroups(place: Place) -> None:
    """The kubelet wants its root cgroup to be there: in every hierarchy of v1, with all controllers in v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        (CGROUPS / f"lab-{place.name}").mkdir(exist_ok=True)
        for controller in (CGROUPS / "cgroup.controllers").read_text().split():
            with contextlib.suppress(OSError):  # it is on already, or not for us to turn on
                (CGROUPS / "cgroup.subtree_control").write_text(f"+{controller}")
        return
    for hierarchy in (path for path in CGROUPS.iterdir() if path.is_dir()):
        folder = hierarchy / f"lab-{place.name}"
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (folder / name).exists():
                (folder / name).write_text((hierarchy / name).read_text())


def _cni(place: Place) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "dataDir": str(place.folder / "ipam"),
        "ranges": [[{"subnet": place.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": place.name, "plugins": [bridge]}


def _kubelet(place: Place) -> dict[str, object]:
    folder = place.folder
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(folder / "pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(folder / "pki/kubelet.crt"),
        "tlsPrivateKeyFile": str(folder / "pki/kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{place.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/lab-{place.name}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDNS": [place.ip],
        "clusterDomain": "cluster.local",
        "resolvConf": str(folder / "resolv.conf"),
        "podLogsDir": str(folder / "podlogs"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 200,
        "volumePluginDir": str(folder / "volumeplugins"),
        "healthzBindAddress": "127.0.0.1",
        "syncFrequency": "10s",
        "serializeImagePulls": False,
    }


def _trust(issuer: Place) -> dict[str, object]:
    """gpu's API server takes the projected tokens of `issuer`'s pods for audience gpu-cluster."""
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [
            {
                "issuer": {
                    "url": issuer.server,
                    "audiences": ["gpu-cluster"],
                    "certificateAuthority": (issuer.pki / "ca.crt").read_text(),
                },
                "claimMappings": {
                    "username": {"claim": "sub", "prefix": f"{issuer.name}:"},
                    "groups": {"expression": f"['{issuer.name}:serviceaccounts']"},
                },
            }
        ],
    }
