"""One cluster of one real node: etcd, API server, controllers, scheduler, containerd, kubelet, kube-proxy, CoreDNS."""

import contextlib
import json
import shutil
from pathlib import Path

from tests.lab import pki
from tests.lab.places import BIN, COMPUTE, GPU, Place
from tests.lab.processes import is_alive, run, start, stop, wait_for

PROGRAMS = ("etcd", "apiserver", "kcm", "scheduler", "containerd", "kubelet", "proxy", "coredns")
_CGROUPS = Path("/sys/fs/cgroup")


def kubectl(place: Place, *words: str, stdin: str = "", check: bool = True) -> str:
    """kubectl as the cluster's administrator; its stdout."""
    return run(BIN / "kubectl", "--kubeconfig", place.kubeconfig, *words, stdin=stdin, check=check)


def up(place: Place) -> None:
    """Start what does not run; returns when the API server is ready."""
    pki.make(place)
    _make_cgroups(place)
    _write_configs(place)
    _start(place, "etcd", *_etcd())
    _start(place, "apiserver", *_apiserver(place))
    _start(place, "containerd", "containerd", "--config", "containerd.toml")
    wait_for(lambda: "ok" in kubectl(place, "get", "--raw", "/readyz", check=False), f"{place.name}: API server")
    if place == COMPUTE:  # gpu's API server reads the keys that these tokens are checked with
        kubectl(place, "apply", "-f", "-", stdin=json.dumps(_ISSUER_DISCOVERY))
    _start(place, "kcm", *_controller_manager(place))
    _start(
        place, "scheduler", BIN / "kube-scheduler", "--kubeconfig=pki/scheduler.kubeconfig",
        "--authentication-kubeconfig=pki/scheduler.kubeconfig", "--authorization-kubeconfig=pki/scheduler.kubeconfig",
        "--leader-elect=false", "--bind-address=127.0.0.1",
    )  # fmt: skip
    wait_for(place.containerd_socket.exists, f"{place.name}: containerd")
    _start(
        place, "kubelet", BIN / "kubelet", "--config=kubelet.yaml", "--kubeconfig=pki/kubelet.kubeconfig",
        f"--hostname-override={place.node}", f"--node-ip={place.ip}", f"--root-dir={place.folder}/kubelet",
        f"--cert-dir={place.folder}/kubelet-pki", "--v=1",
    )  # fmt: skip
    _start(
        place, "proxy", BIN / "kube-proxy", "--kubeconfig=pki/proxy.kubeconfig", "--proxy-mode=nftables",
        *(f"--conntrack-{limit}=0" for limit in ("max-per-core", "min", "tcp-timeout-established", "tcp-timeout-close-wait")),
        f"--hostname-override={place.node}", f"--cluster-cidr={place.pods}", "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
    )  # fmt: skip
    _start(place, "coredns", BIN / "coredns", "-conf", "Corefile")


def wait_ready(place: Place) -> None:
    """Until the real node is ready for pods."""
    wait_for(
        lambda: "True" in kubectl(
            place, "get", "node", place.node, "-o", "jsonpath={.status.conditions[?(@.type=='Ready')].status}", check=False
        ),
        f"{place.name}: node {place.node}",
    )  # fmt: skip


def running(place: Place) -> list[str]:
    """Names of the programs that run."""
    return [name for name in PROGRAMS if is_alive(place.folder, name)]


def down(place: Place) -> None:
    """End everything of the cluster. Images stay in the cache."""
    if is_alive(place.folder, "containerd"):
        for name in ("kubelet", "proxy", "coredns"):
            stop(place.folder, name)
        _remove_containers(place)
    for name in reversed(PROGRAMS):  # the API server before its etcd, or it hangs for minutes
        stop(place.folder, name)
    _end_leftovers(place)
    for mount in reversed(_mounts(place)):
        run("umount", "-l", mount, check=False)
    shutil.rmtree(place.containerd_state, ignore_errors=True)
    shutil.rmtree(place.folder, ignore_errors=True)
    for cgroup in sorted(_CGROUPS.glob(f"*/lab-{place.name}/**/"), key=lambda p: -len(p.parts)):
        _remove_cgroup(cgroup)


def _remove_cgroup(folder: Path) -> None:
    with contextlib.suppress(OSError):  # something still runs in it
        folder.rmdir()


def _remove_containers(place: Place) -> None:
    for name in _ctr(place, "containers", "list", "-q").split():
        _ctr(place, "task", "kill", "-s", "SIGKILL", "-a", name)
        _ctr(place, "task", "delete", "-f", name)
        _ctr(place, "containers", "delete", name)


def _ctr(place: Place, *words: str) -> str:
    return run("ctr", "--address", place.containerd_socket, "-n", "k8s.io", *words, check=False)


def _end_leftovers(place: Place) -> None:
    """Shims whose containerd is gone."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"containerd-shim" in words[0] and str(place.containerd_socket).encode() in words:
            run("kill", "-KILL", folder.name, check=False)


def _mounts(place: Place) -> list[str]:
    roots = (f"{place.folder}/", f"{place.containerd_state}/", f"{place.containerd_root}/")
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return [path for path in mounted if path.startswith(roots)]


def _start(place: Place, name: str, *argv: str | Path) -> None:
    start(place.folder, name, argv, netns=place.name)


def _etcd() -> list[str | Path]:
    urls = "http://127.0.0.1:2379"
    return [
        BIN / "etcd", "--data-dir=etcd", "--unsafe-no-fsync", f"--listen-client-urls={urls}",
        f"--advertise-client-urls={urls}", "--listen-peer-urls=http://127.0.0.1:2380",
    ]  # fmt: skip


def _apiserver(place: Place) -> list[str | Path]:
    pairs = {
        "etcd-servers": "http://127.0.0.1:2379",
        "bind-address": place.ip,
        "advertise-address": place.ip,
        "tls-cert-file": "pki/apiserver.crt",
        "tls-private-key-file": "pki/apiserver.key",
        "client-ca-file": "pki/ca.crt",
        "service-account-key-file": "pki/sa.pub",
        "service-account-signing-key-file": "pki/sa.key",
        "service-account-issuer": place.server,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-cluster-ip-range": place.services,
        "kubelet-client-certificate": "pki/admin.crt",
        "kubelet-client-key": "pki/admin.key",
        "kubelet-certificate-authority": "pki/ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "allow-privileged": "true",
        "proxy-client-cert-file": "pki/admin.crt",
        "proxy-client-key-file": "pki/admin.key",
        "requestheader-client-ca-file": "pki/ca.crt",
        "requestheader-allowed-names": "admin",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "profiling": "false",
    }
    if place == GPU:
        pairs["authentication-config"] = "authentication.yaml"
    return [BIN / "kube-apiserver", *(f"--{name}={value}" for name, value in pairs.items())]


def _controller_manager(place: Place) -> list[str | Path]:
    pairs = {
        "kubeconfig": "pki/kcm.kubeconfig",
        "authentication-kubeconfig": "pki/kcm.kubeconfig",
        "authorization-kubeconfig": "pki/kcm.kubeconfig",
        "root-ca-file": "pki/ca.crt",
        "service-account-private-key-file": "pki/sa.key",
        "use-service-account-credentials": "true",
        "cluster-signing-cert-file": "pki/ca.crt",
        "cluster-signing-key-file": "pki/ca.key",
        "leader-elect": "false",
        "allocate-node-cidrs": "false",
        "bind-address": "127.0.0.1",
        "node-monitor-grace-period": "20s",
    }
    return [BIN / "kube-controller-manager", *(f"--{name}={value}" for name, value in pairs.items())]


def _make_cgroups(place: Place) -> None:
    """cgroup v1: the kubelet wants its root in every hierarchy; v2: it makes it itself."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return
    for hierarchy in (path for path in _CGROUPS.iterdir() if path.is_dir()):
        folder = hierarchy / f"lab-{place.name}"
        folder.mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (folder / name).exists():
                (folder / name).write_text((hierarchy / name).read_text())


def _write_configs(place: Place) -> None:
    folder = place.folder
    (folder / "cni").mkdir(exist_ok=True)
    (folder / "resolv.conf").touch()
    (folder / "cni/10-bridge.conflist").write_text(json.dumps(_cni(place)))
    (folder / "containerd.toml").write_text(_CONTAINERD.format(place=place, cni=folder / "cni"))
    (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(place)))
    (folder / "Corefile").write_text(_COREFILE.format(place=place))
    if place == GPU:
        (folder / "authentication.yaml").write_text(json.dumps(_trust(COMPUTE)))


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


_ISSUER_DISCOVERY = {
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
# restrict_oom_score_adj: some kernels withhold CAP_SYS_RESOURCE, and every sandbox would die
_CONTAINERD = """version = 2
root = "{place.containerd_root}"
state = "{place.containerd_state}"
[grpc]
  address = "{place.containerd_socket}"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true
  sandbox_image = "registry.lab.internal/pause:1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
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
