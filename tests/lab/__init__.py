"""The lab: the site's two clusters and its S3 server on one machine, for tests.

    python -m tests.lab build    programs, manifests and images, into the cache (once)
    python -m tests.lab up       both clusters with all that the site has; again: nothing to do
    python -m tests.lab status   what runs, versions, memory
    python -m tests.lab env      the file of shell variables for clients
    python -m tests.lab down     nothing is left but the cache

    versions.py     what is built, by Go module      places.py     addresses and folders
    build.py        how                              processes.py  started, known by pid and start time, ended
    network.py      namespaces, bridge, routes       pki.py        certificates and kubeconfigs
    cluster.py      one cluster: etcd to kubelet     configs.py    its configuration files
    images.py       archives into containerd         step_images.py  the images of steps
    install.py      controllers, config/clusters     fakes.py      twelve servers that KWOK plays
    storage.py      the S3 server, its identities    clients.py    what a client needs: a file of shell variables
    status.py       what runs                        remains.py    what a cluster leaves, and its end

Needs root, Go and Debian's containerd, runc, nftables, iproute2 and containernetworking-plugins (`build` installs them).
Works with cgroup v1 (tried) and v2 (not tried).
"""
