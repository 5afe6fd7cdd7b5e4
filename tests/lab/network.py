"""One network namespace a cluster, joined by a bridge; pods of each reach the other's nodes and the S3 server.

The namespaces are files in the lab's folder. `ip netns` is not used: it would leave a mount at /run/netns.
"""

import os
from pathlib import Path

from tests.lab.places import BRIDGE, CLUSTERS, GATEWAY, RUN, Place
from tests.lab.processes import run

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_BEFORE = RUN / "ip_forward.before"


def up() -> None:
    """Make the bridge, the namespaces and the routes that are missing."""
    RUN.mkdir(parents=True, exist_ok=True)
    if not Path(f"/sys/class/net/{BRIDGE}").exists():
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
    if not _BEFORE.exists():
        _BEFORE.write_text(_FORWARD.read_text())
    _FORWARD.write_text("1")
    for place in CLUSTERS:
        _namespace(place)
    for place in CLUSTERS:
        for addresses in (place.pods, place.services):
            run("ip", "route", "replace", addresses, "via", place.ip)
        for other in CLUSTERS:
            if other != place:
                _inside(place, "ip", "route", "replace", other.pods, "via", other.ip)


def _namespace(place: Place) -> None:
    if os.path.ismount(place.netns):
        return
    place.folder.mkdir(parents=True, exist_ok=True)
    place.netns.touch()
    run("unshare", f"--net={place.netns}", "true")
    run("ip", "link", "add", f"v{place.name}", "type", "veth", "peer", "name", "eth0", "netns", place.netns)
    run("ip", "link", "set", f"v{place.name}", "master", BRIDGE, "up")
    _inside(place, "ip", "link", "set", "lo", "up")
    _inside(place, "ip", "addr", "add", f"{place.ip}/24", "dev", "eth0")
    _inside(place, "ip", "link", "set", "eth0", "up")
    _inside(place, "ip", "route", "add", "default", "via", GATEWAY)
    _inside(place, "sysctl", "-qw", "net.ipv4.ip_forward=1")


def _inside(place: Place, *words: str) -> None:
    run("nsenter", f"--net={place.netns}", *words)


def down() -> None:
    """Remove them."""
    for place in CLUSTERS:
        if os.path.ismount(place.netns):
            run("umount", place.netns)
    for link in (*(f"v{place.name}" for place in CLUSTERS), BRIDGE):
        if Path(f"/sys/class/net/{link}").exists():
            run("ip", "link", "del", link)
    if _BEFORE.exists():
        _FORWARD.write_text(_BEFORE.read_text())
        _BEFORE.unlink()


def cut(place: Place, *, off: bool) -> None:
    """Take a cluster off the bridge, or put it back: its API server is away, its pods go on."""
    run("ip", "link", "set", f"v{place.name}", "down" if off else "up")
