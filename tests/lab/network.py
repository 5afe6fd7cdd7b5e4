"""One network namespace a cluster, joined by a bridge; pods of each reach the other's nodes and the S3 server."""

from pathlib import Path

from tests.lab.places import BRIDGE, CLUSTERS, GATEWAY, Place
from tests.lab.processes import run


def up() -> None:
    """Make the bridge, the namespaces and the routes that are missing."""
    if not Path(f"/sys/class/net/{BRIDGE}").exists():
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
    run("sysctl", "-qw", "net.ipv4.ip_forward=1")
    for place in CLUSTERS:
        _namespace(place)
    for place in CLUSTERS:
        run("ip", "route", "replace", place.pods, "via", place.ip)
        for other in CLUSTERS:
            if other != place:
                run("ip", "-n", place.name, "route", "replace", other.pods, "via", other.ip)


def _namespace(place: Place) -> None:
    name = place.name
    if Path(f"/var/run/netns/{name}").exists():
        return
    run("ip", "netns", "add", name)
    run("ip", "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", name)
    run("ip", "link", "set", f"v{name}", "master", BRIDGE, "up")
    run("ip", "-n", name, "link", "set", "lo", "up")
    run("ip", "-n", name, "addr", "add", f"{place.ip}/24", "dev", "eth0")
    run("ip", "-n", name, "link", "set", "eth0", "up")
    run("ip", "-n", name, "route", "add", "default", "via", GATEWAY)
    run("nsenter", f"--net=/var/run/netns/{name}", "sysctl", "-qw", "net.ipv4.ip_forward=1")


def down() -> None:
    """Remove them."""
    for place in CLUSTERS:
        run("ip", "link", "del", f"v{place.name}", check=False)
        run("ip", "netns", "del", place.name, check=False)
    run("ip", "link", "del", BRIDGE, check=False)


def cut(place: Place, *, off: bool) -> None:
    """Take a cluster off the bridge, or put it back: its API server is away, its pods go on."""
    run("ip", "link", "set", f"v{place.name}", "down" if off else "up")
