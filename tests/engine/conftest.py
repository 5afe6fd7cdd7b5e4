"""The engines under test: the local one, and Argo where a cluster is given (`make e2e`)."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engines import Engine, LocalEngine

ON_CLUSTER = ["argo"] if os.environ.get("TRIPOD_COMPUTE_KUBECONFIG") else []


@pytest.fixture
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """One engine after the other."""
    if getattr(request, "param", "local") == "argo":
        from tests.engine.argo import ArgoEngine

        argo = ArgoEngine(tmp_path / "scratch")
        yield argo
        return
    local = LocalEngine(tmp_path / "scratch")
    yield local
    local.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The conformance suite runs on both; the other tests know the local engine's processes."""
    if "engine" in metafunc.fixturenames and metafunc.module.__name__.endswith("test_conformance"):
        metafunc.parametrize("engine", ["local", *ON_CLUSTER], indirect=True)
