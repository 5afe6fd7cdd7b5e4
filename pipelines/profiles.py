"""Capacity profiles, for who plans a training: which of them hold it, and when those begin. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

from pipelines.settings.site import Profile, Site
from steps.lib.errors import UserError


def profile_lines(nodes: Sequence[int], site: Site, now: datetime) -> list[str]:
    """Which profiles hold each size of a training; none for a site without profiles.

    Args:
        nodes: numbers of nodes that the recipe may run at.
        now: in any zone.

    Raises:
        UserError: no profile will ever hold the smallest.
    """
    profiles, per_node = site.capacity.profiles, site.gpu.gpus_per_node
    if not profiles or site.gang.target != "kubernetes":
        return []
    most, smallest = max(profiles, key=lambda name: profiles[name].training), min(nodes)
    if smallest * per_node > profiles[most].training:
        raise UserError(
            f"scale.nodes: {smallest} nodes are {smallest * per_node} GPUs, the largest profile, {most}, gives training "
            f"{profiles[most].training}; name a smaller size"
        )
    now = now.astimezone(ZoneInfo(site.capacity.zone))
    active = active_profile(profiles, now)
    shown = ", ".join(f"{name} {profile.training}" for name, profile in profiles.items())
    lines = [f"profiles for training: {shown} GPUs" + (f"; by the clock it is {active}" if active else "")]
    for count in nodes:
        fitting = [name for name, profile in profiles.items() if profile.training >= count * per_node]
        lines.append(f"{count * per_node} GPUs: {_when(fitting, profiles, active, now)}")
    return lines


def active_profile(profiles: Mapping[str, Profile], now: datetime) -> str:
    """The profile that the clock asks for: the one that began last; "" when none begins by the clock.

    Args:
        now: in the zone that the profiles begin by.
    """
    starts = sorted((profile.start, name) for name, profile in profiles.items() if profile.start)
    begun = [name for start, name in starts if start <= now.strftime("%H:%M")]
    return begun[-1] if begun else starts[-1][1] if starts else ""


def _when(fitting: Sequence[str], profiles: Mapping[str, Profile], active: str, now: datetime) -> str:
    if not fitting:
        return "fits no profile"
    if active in fitting:
        return f"fits now, {active}"
    by_clock = [name for name in fitting if profiles[name].start]
    if not by_clock:
        return f"fits {' and '.join(fitting)} alone, which begins by hand"
    clock = now.strftime("%H:%M")
    first = min(by_clock, key=lambda name: (profiles[name].start <= clock, profiles[name].start))
    return f"fits at {first}, expected {profiles[first].start} {now.tzname()}"
