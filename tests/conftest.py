"""What tests of every area share."""

from pathlib import Path

import pytest

from steps.lib.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store in a local folder of the test's own."""
    return open_store(f"file://{tmp_path}/store")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this project's tests."""
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew")
