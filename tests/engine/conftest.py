"""The engines under test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.engines import LocalEngine


@pytest.fixture(params=["local"])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    """One engine after the other."""
    local = LocalEngine(tmp_path / "scratch")
    yield local
    local.close()
