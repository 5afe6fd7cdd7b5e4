"""Canonical JSON and sha256: the one way in which this product names content."""

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """`value` as JSON bytes with sorted keys, no spaces and no NaN.

    Raises:
        ValueError: a float is NaN or infinite.
        TypeError: a value is not JSON.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_hex(data: bytes | bytearray | memoryview) -> str:
    """Lower-case hex sha256 of `data`, 64 characters."""
    return hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """sha256 of the canonical JSON of `value`, 64 hex characters."""
    return sha256_hex(canonical_json(value))
