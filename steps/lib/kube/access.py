"""How an API server is reached: a kubeconfig, a projected token for another cluster, or the pod's own account."""

from pathlib import Path
from typing import TYPE_CHECKING

from steps.lib.errors import UserError
from steps.lib.kube.cluster import Cluster
from steps.lib.kube.wire import Wire

if TYPE_CHECKING:
    from kubernetes.client import Configuration

_CONNECTIONS = 64
"""Kept open at most: the logs of a gang are followed side by side."""


def open_cluster(
    name: str,
    *,
    kubeconfig: str = "",
    context: str = "",
    server: str = "",
    ca_file: str = "",
    token_file: str = "",
    retry_s: float = 60,
) -> Cluster:
    """An API server, by one of three ways; nothing is asked of it yet.

    Args:
        name: what messages call it.
        kubeconfig: a file, for people and for tests.
        server: URL of another cluster that trusts this pod's projected token; with `ca_file`, and
            `token_file`, which is read anew for every call, since the token in it rotates.
            With neither, it is the cluster that this pod runs in.
        retry_s: how long a call is repeated.

    Raises:
        UserError: the kubeconfig, the token or the pod's own account is not there.
    """
    from kubernetes import config
    from kubernetes.client import Configuration

    settings = Configuration()
    settings.connection_pool_maxsize = _CONNECTIONS
    try:
        if kubeconfig:
            config.load_kube_config(kubeconfig, context or None, settings, persist_config=False)
        elif server:
            settings.host, settings.ssl_ca_cert = server, ca_file or None
            settings.refresh_api_key_hook = lambda asked: _read_token(asked, name, token_file)
            _read_token(settings, name, token_file)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError) as e:
        raise UserError(f"{name} cluster: {kubeconfig or 'this pod'}: {' '.join(str(e).split())}") from e
    return Cluster(settings, name=name, retry_s=retry_s)


def open_wire(what: str, server: str, *, token: str, ca_file: str = "", retry_s: float = 60) -> Wire:
    """Another server that takes a bearer token, such as Argo's; nothing is asked of it yet.

    Args:
        what: how messages call it.
        token: with or without the word Bearer.
        ca_file: CA certificates that it is checked against; "": the system's.
    """
    from kubernetes.client import Configuration

    settings = Configuration(host=server)
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.ssl_ca_cert = ca_file or None
    settings.api_key["BearerToken"] = token if token.startswith("Bearer ") else f"Bearer {token}"
    return Wire(settings, what=what, retry_s=retry_s)


def _read_token(settings: "Configuration", name: str, token_file: str) -> None:
    try:
        settings.api_key["BearerToken"] = f"Bearer {Path(token_file).read_text().strip()}"
    except OSError as e:
        raise UserError(f"{name} cluster: token file {token_file or '(none is set)'}: {e.strerror}") from e
