"""The lab: the site's two clusters and its S3 server on one machine, for tests.

    python -m tests.lab build    Go programs and manifests from pinned modules, into the cache (once)
    python -m tests.lab up       both clusters with all that the site has; again: nothing to do
    python -m tests.lab status   what runs
    python -m tests.lab down     nothing is left but the cache

    versions.py  what is built          network.py   namespaces, bridge, routes
    build.py     how                    pki.py       certificates and kubeconfigs
    processes.py started and ended      cluster.py   one cluster: etcd to kubelet
    images.py    into containerd        install.py   controllers, fake nodes, config/clusters
    places.py    where things are       storage.py   the S3 server and its identities

Needs root, Go and Debian's containerd, runc, nftables, iproute2 and containernetworking-plugins (`build` installs them).
"""
