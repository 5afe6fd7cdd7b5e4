"""What the plan says of capacity profiles and of the queue."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from pipelines.gpu_queue import queue_lines
from pipelines.profiles import profile_lines
from pipelines.settings.load import load_site
from pipelines.settings.site import Site
from steps.lib.errors import UserError
from steps.lib.kube.kinds import CLUSTER_QUEUE
from tests.kube.api import Api, serving
from tests.trainjob.controllers import install_queue

BERLIN = ZoneInfo("Europe/Berlin")
DAY, NIGHT, EARLY = (datetime(2026, 3, 10, hour, 30, tzinfo=BERLIN) for hour in (12, 22, 3))


@pytest.fixture(scope="module")
def prod() -> Site:
    return load_site("prod").value


@pytest.mark.parametrize(
    ("now", "nodes", "said"),
    [
        (DAY, 4, "32 GPUs: fits now, day"),
        (DAY, 10, "80 GPUs: fits at night, expected 20:00 CET"),
        (NIGHT, 10, "80 GPUs: fits now, night"),
        (EARLY, 10, "80 GPUs: fits now, night"),
        (DAY, 12, "96 GPUs: fits big alone, which begins by hand"),
    ],
)
def test_each_size_is_told_when_it_fits(prod, now, nodes, said):
    first, line = profile_lines([nodes], prod, now)
    assert first.startswith("profiles for training: day 32, night 80, big 96 GPUs; by the clock it is ")
    assert line == said


def test_what_no_profile_will_hold_is_refused(prod):
    with pytest.raises(UserError, match="13 nodes are 104 GPUs, the largest profile, big, gives training 96"):
        profile_lines([13, 14], prod, DAY)
    assert profile_lines([12, 13], prod, DAY)[-1] == "104 GPUs: fits no profile"
    assert prod.step_env("s3://tripod", [4])["TRIPOD_GPU_LIMIT"] == "96"


def test_a_site_without_profiles_says_nothing(prod):
    assert profile_lines([13], load_site("lab").value, DAY) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("capacity.profiles.day.training=33", "capacity.profiles.day.training is 33, allowed are multiples of"),
        ("capacity.zone=Berlin", "capacity.zone is .*, allowed are IANA names such as Europe/Berlin"),
        ("capacity.zone=../../etc/passwd", "capacity.zone is .*, allowed are IANA names such as Europe/Berlin"),
        ('capacity.profiles.day.start="8:00"', "capacity.profiles.day.start"),
    ],
)
def test_settings_that_are_wrong(value, said):
    with pytest.raises(UserError, match=said):
        load_site("prod", [value])


@pytest.fixture
def api() -> Api:
    api = Api()
    install_queue(api, 96)
    return api


@pytest.fixture
def site(api: Api, tmp_path: Path) -> Iterator[Site]:
    with serving(api, tmp_path) as kubeconfig:
        sets = [f"gpu.kubeconfig={kubeconfig}", "gpu.namespace=team-a", "gpu.runtime=tripod-train"]
        yield load_site("prod", sets).value


def hold(api: Api, gpus: int, waiting: int = 0) -> None:
    """Others have GPUs, and wait."""
    resources = [{"name": "cpu", "total": "5"}, {"name": "nvidia.com/gpu", "total": str(gpus)}]
    [queue] = api.of(CLUSTER_QUEUE)
    queue["status"] = {
        "flavorsReservation": [{"name": "training", "resources": resources}],
        "pendingWorkloads": waiting,
    }


def test_the_queue_is_told_with_what_is_free_and_who_waits(api, site, monkeypatch):
    monkeypatch.setattr("steps.lib.trainjob.preflight.check_runtime", lambda cluster, place: None)
    assert queue_lines([4, 10], site) == [
        "queue train: 96 of 96 GPUs are free; this training asks for 80, starts at once"
    ]
    hold(api, 32, waiting=2)
    assert queue_lines([4, 10], site) == ["queue train: 64 of 96 GPUs are free; this training asks for 80, position 3"]


def test_a_queue_that_is_not_there_is_refused_and_a_cluster_that_is_away_is_said(api, site, monkeypatch):
    monkeypatch.setattr("steps.lib.trainjob.preflight.check_runtime", lambda cluster, place: None)
    other = site.model_copy(update={"gpu": site.gpu.model_copy(update={"queue": "nope"})})
    with pytest.raises(UserError, match="namespace team-a has no LocalQueue nope; it has train"):
        queue_lines([4], other)
    monkeypatch.setattr("pipelines.clusters._RETRY_S", 0.2)
    api.away = True
    [line] = queue_lines([4], site)
    assert line.startswith("queue not asked: gpu cluster, http://127.0.0.1:")
    assert line.endswith("; the launcher asks it")
