"""`python -m tests.lab build|up|status|env|down`."""

import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.lab import build, clients, cluster, fakes, images, install, network, pki, remains, status, storage
from tests.lab.places import BIN, CLUSTERS, COMPUTE, ENV_FILE, GPU, RUN, Place
from tests.lab.processes import stop
from tests.lab.versions import PROGRAMS


def up() -> None:
    """Bring everything up that is not."""
    _refuse_without_root()
    missing = [p.name for p in PROGRAMS if not (BIN / p.name).exists()]
    if missing:
        sys.exit(f"error: {', '.join(missing)}: not built; run `make lab-build` first")
    begun = time.monotonic()
    network.up()
    storage.up()
    for place in CLUSTERS:  # gpu's API server is told compute's CA
        pki.make(place)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_cluster, CLUSTERS))
    install.site()
    clients.write()
    print(f"up after {time.monotonic() - begun:.0f} s")
    status.show()


def _cluster(place: Place) -> None:
    cluster.up(place)
    images.load(place, images.of_program("pause", "1"))
    cluster.wait_ready(place)
    if place == COMPUTE:
        install.compute()
    else:
        install.gpu()
        fakes.up()
    clients.load_images(place)
    install.wait_for_controllers(place)


def down() -> None:
    """End everything."""
    _refuse_without_root()
    stop(GPU.folder, "kwok")
    with ThreadPoolExecutor() as pool:
        list(pool.map(remains.remove, CLUSTERS))
    remains.remove_sockets()
    storage.down()
    network.down()
    shutil.rmtree(RUN, ignore_errors=True)
    if left := [what for place in CLUSTERS for what in remains.left(place)]:
        sys.exit(f"error: {len(left)} things are left, as {left[0]}; run `make lab-down` again")


def _refuse_without_root() -> None:
    if os.geteuid():
        sys.exit("error: the lab makes network namespaces and mounts, so it needs root; try sudo make lab-up")


def main() -> None:
    """Entry point."""
    verbs = {"build": build.build, "up": up, "status": status.show, "env": lambda: print(ENV_FILE), "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit(f"usage: python -m tests.lab {'|'.join(verbs)}")
    verbs[sys.argv[1]]()


if __name__ == "__main__":
    main()
