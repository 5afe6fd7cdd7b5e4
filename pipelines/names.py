"""Names that are valid everywhere: Kubernetes objects, labels, store keys."""

import re
import secrets
import time
from hashlib import sha256

from steps.lib.errors import UserError

MAX_CHARS = 40
"""Leaves room for suffixes: a CronWorkflow's name has 52 characters, a label 63."""
MAX_RUN_ID_CHARS = 52


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


def check_run_id(run_id: str) -> str:
    """`run_id` itself when it can name a run everywhere.

    Raises:
        UserError: not a DNS label of at most 52 characters.
    """
    if len(run_id) > MAX_RUN_ID_CHARS or not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", run_id):
        raise UserError(
            f"--run-id: got {run_id!r}, allowed are a-z, 0-9 and -, starting with a letter, at most {MAX_RUN_ID_CHARS} characters"
        )
    return run_id


def new_run_id(recipe: str) -> str:
    """A name for a run: recipe, time and four random hex digits, in the order of time."""
    return f"{dns_name(recipe, 30)}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
