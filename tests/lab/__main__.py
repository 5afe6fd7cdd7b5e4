"""`python -m tests.lab build|up|status|down`."""

import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tests.lab import build, cluster, images, install, network, storage
from tests.lab.places import BIN, CLUSTERS, COMPUTE, GPU, RUN, S3_ENDPOINT
from tests.lab.processes import is_alive, stop
from tests.lab.versions import PROGRAMS


def up() -> None:
    """Bring everything up that is not."""
    if os.geteuid():
        sys.exit("error: the lab makes network namespaces and mounts, so it needs root; try sudo make lab-up")
    missing = [p.name for p in PROGRAMS if not (BIN / p.name).exists()]
    if missing:
        sys.exit(f"error: {', '.join(missing)}: not built; run `make lab-build` first")
    begun = time.monotonic()
    network.up()
    storage.up()
    cluster.up(COMPUTE)  # gpu's API server asks compute's for the keys of its tokens
    cluster.up(GPU)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_controllers, CLUSTERS))
    install.site()
    print(f"up after {time.monotonic() - begun:.0f} s")
    status()


def _controllers(place: cluster.Place) -> None:
    images.load(place, images.of_program("pause", "1"))
    cluster.wait_ready(place)
    (install.compute if place == COMPUTE else install.gpu)()
    install.wait_for_controllers(place)


def status() -> None:
    """What runs, and where things are."""
    for place in CLUSTERS:
        names = cluster.running(place)
        print(f"{place.name:8} {len(names)} of {len(cluster.PROGRAMS)} programs run  {place.server}")
        print(f"         export TRIPOD_{place.name.upper()}_KUBECONFIG={place.kubeconfig}")
    print(f"s3       {'runs' if is_alive(storage.FOLDER, 'versitygw') else 'is down'}  {S3_ENDPOINT}")


def down() -> None:
    """End everything."""
    stop(GPU.folder, "kwok")
    for place in reversed(CLUSTERS):
        cluster.down(place)
    storage.down()
    network.down()
    shutil.rmtree(RUN, ignore_errors=True)


def main() -> None:
    """Entry point."""
    verbs = {"build": build.build, "up": up, "status": status, "down": down}
    if len(sys.argv) != 2 or sys.argv[1] not in verbs:
        sys.exit(f"usage: python -m tests.lab {'|'.join(verbs)}")
    verbs[sys.argv[1]]()


if __name__ == "__main__":
    main()
