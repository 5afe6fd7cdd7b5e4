"""Certificates and kubeconfigs of one cluster, by openssl."""

import base64
import json
from pathlib import Path

from tests.lab.places import Place
from tests.lab.processes import run

_CURVE = "prime256v1"  # RSA keys took half a minute of a busy machine
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{_CURVE}", "-nodes")
_USERS = {
    "admin": "/O=system:masters/CN=admin",
    "kcm": "/CN=system:kube-controller-manager",
    "scheduler": "/CN=system:kube-scheduler",
    "proxy": "/CN=system:kube-proxy",
    "dns": "/O=system:masters/CN=coredns",
}


def make(place: Place) -> None:
    """All keys, certificates and kubeconfigs, unless they are there."""
    folder = place.pki
    if (folder / "done").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(
        folder, "req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", "-days", "3650",
        "-subj", f"/CN=lab-{place.name}",
    )  # fmt: skip
    _openssl(folder, "ecparam", "-name", _CURVE, "-genkey", "-noout", "-out", "sa.key")
    _openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    first_service = place.services.replace("0.0/16", "0.1")
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", place.name)
    hosts = [f"IP:{place.ip}", f"IP:{first_service}", "IP:127.0.0.1", *(f"DNS:{name}" for name in names)]
    _certificate(folder, "apiserver", "/CN=kube-apiserver", ",".join(hosts))
    _certificate(folder, "kubelet", f"/O=system:nodes/CN=system:node:{place.node}", f"IP:{place.ip},DNS:{place.node}")
    for user, subject in _USERS.items():
        _certificate(folder, user, subject, f"DNS:{user}")
    for user in (*_USERS, "kubelet"):
        _kubeconfig(place, user)
    (folder / "done").touch()


def _certificate(folder: Path, name: str, subject: str, hosts: str) -> None:
    extensions = folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={hosts}\nextendedKeyUsage=serverAuth,clientAuth\n")
    _openssl(folder, "req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "3650",
        "-extfile", extensions.name, "-out", f"{name}.crt",
    )  # fmt: skip


def _kubeconfig(place: Place, user: str) -> None:
    def data(file: str) -> str:
        return base64.b64encode((place.pki / file).read_bytes()).decode()

    cluster = {"server": place.server, "certificate-authority-data": data("ca.crt")}
    identity = {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": place.name, "cluster": cluster}],
        "users": [{"name": user, "user": identity}],
        "contexts": [{"name": place.name, "context": {"cluster": place.name, "user": user}}],
        "current-context": place.name,
    }
    (place.pki / f"{user}.kubeconfig").write_text(json.dumps(config, indent=1))


def _openssl(folder: Path, *words: str) -> None:
    run("sh", "-c", 'cd "$0" && exec openssl "$@"', folder, *words)
