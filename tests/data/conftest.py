"""An S3 store beside the local one, from the store's own tests."""

import pytest

from tests.store.conftest import moto, s3_uri, use

__all__ = ["moto", "moto_uri", "s3_uri", "use"]


@pytest.fixture
def moto_uri(s3_uri: str) -> str:
    """An empty store in moto; the environment reaches it, in processes too."""
    return s3_uri
