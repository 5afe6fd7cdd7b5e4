"""Names that are valid everywhere: Kubernetes objects, labels, store keys."""

import re
import secrets
import time
from hashlib import sha256

MAX_CHARS = 40
"""Leaves room for suffixes: a CronWorkflow's name has 52 characters, a label 63."""


def dns_name(original: str, max_chars: int = MAX_CHARS) -> str:
    """`original` as a DNS label: a-z, 0-9 and -, starting with a letter, at most `max_chars`.

    A name that had to be changed gets 8 digits of its sha256, so different names stay different
    and the same name stays the same.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", original.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"m-{plain}".strip("-")
    if plain == original and len(plain) <= max_chars:
        return plain
    suffix = sha256(original.encode()).hexdigest()[:8]
    return f"{plain[: max_chars - 9].strip('-')}-{suffix}"


def new_run_id(recipe: str) -> str:
    """A name for a run: recipe, time and four random hex digits, in the order of time."""
    return f"{dns_name(recipe, 30)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
