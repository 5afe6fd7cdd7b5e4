"""One cluster of one real node: etcd, API server, controllers, scheduler, containerd, kubelet, kube-proxy, CoreDNS."""

import json
from pathlib import Path

from tests.lab import configs
from tests.lab.places import BIN, COMPUTE, GPU, Place
from tests.lab.processes import is_alive, run, start, wait_for

PROGRAMS = ("etcd", "apiserver", "kcm", "scheduler", "containerd", "kubelet", "proxy", "coredns")


def kubectl(place: Place, *words: str, stdin: str = "", check: bool = True) -> str:
    """kubectl as the cluster's administrator; its stdout."""
    return run(BIN / "kubectl", "--kubeconfig", place.kubeconfig, *words, stdin=stdin, check=check)


def up(place: Place) -> None:
    """Start what does not run; returns when the API server is ready."""
    configs.make_cgroups(place)
    configs.write(place)
    _start(place, "etcd", *_etcd())
    _start(place, "apiserver", *_apiserver(place))
    _start(place, "containerd", "containerd", "--config", "containerd.toml")
    wait_for(lambda: "ok" in kubectl(place, "get", "--raw", "/readyz", check=False), f"{place.name}: API server")
    if place == COMPUTE:
        kubectl(place, "apply", "-f", "-", stdin=json.dumps(configs.ISSUER_DISCOVERY))
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


def _start(place: Place, name: str, *argv: str | Path) -> None:
    start(place.folder, name, argv, netns=place.netns)


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
