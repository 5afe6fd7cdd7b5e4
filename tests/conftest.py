"""What tests of every area share."""

import signal
from pathlib import Path

import pytest

from steps.lib.store import Store, open_store
from tests.store.conftest import moto, proxy, s3_uri, use

__all__ = ["moto", "moto_uri", "proxy", "s3_uri", "use"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store in a local folder of the test's own."""
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def moto_uri(s3_uri: str) -> str:
    """An empty store in moto; the environment reaches it, in processes too."""
    return s3_uri


def pytest_configure() -> None:
    """A shell that starts us in the background has SIGINT ignored, and children inherit that: Ctrl-C is tested."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this project's tests."""
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew")
