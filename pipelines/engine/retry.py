"""The one retry strategy, written for Argo and read by the local engine.

The expression is the exit table of steps.lib.errors in Argo's words: codes 75, 76 and those of 128
and above but 130, and Argo's own errors. Argo gives -1 where a pod left no code: it was evicted, lost with
its node, or took too long, and the local engine has a code above 128 for that. A test evaluates both on every code.
"""

import re
from dataclasses import dataclass
from typing import Any

from pipelines.engine.document import Place
from steps.lib.errors import is_retryable

RETRY_EXPRESSION = (
    'lastRetry.status == "Error" || asInt(lastRetry.exitCode) in [75, 76] || '
    "(asInt(lastRetry.exitCode) >= 128 && asInt(lastRetry.exitCode) != 130) || asInt(lastRetry.exitCode) < 0"
)
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and after what wait an attempt that may be retried is."""

    limit: int = 0
    """Attempts after the first."""
    backoff_s: float = 0
    """Wait before the first retry."""
    factor: float = 1
    """The wait grows by this with each retry."""
    cap_s: float = float("inf")
    """The longest wait."""

    def wait_s(self, attempt: int) -> float:
        """Seconds between the end of attempt `attempt` (from 0) and the next one."""
        return min(self.cap_s, self.backoff_s * self.factor**attempt)

    def again(self, attempt: int, *, exit_code: int, error: bool) -> bool:
        """Whether another attempt follows attempt `attempt` (from 0).

        Args:
            error: the engine failed rather than the step (Argo's state `Error`).
        """
        return attempt < self.limit and (error or is_retryable(exit_code))


def retry_strategy(retries: int, backoff_s: int) -> dict[str, Any]:
    """The `retryStrategy` of a template.

    Args:
        retries: attempts after the first.
        backoff_s: wait before the first retry, doubled each time, seconds.
    """
    strategy: dict[str, Any] = {"limit": str(retries), "retryPolicy": "Always", "expression": RETRY_EXPRESSION}
    return strategy | ({"backoff": {"duration": f"{backoff_s}s", "factor": "2"}} if backoff_s else {})


def parse_retry(place: Place) -> Retry:
    """Read a `retryStrategy`. Raises UserError for any other than ours."""
    place.only(("limit", "retryPolicy", "backoff", "expression"))
    if (policy := place.at("retryPolicy")).value != "Always":
        raise policy.wrong("'Always'")
    expression = place.at("expression")
    if " ".join(expression.text().split()) != RETRY_EXPRESSION:
        raise expression.wrong(f"only {RETRY_EXPRESSION!r}")
    limit = _count(place.at("limit"))
    if not place.has("backoff"):
        return Retry(limit=limit)
    backoff = place.at("backoff").only(("duration", "factor", "cap"))
    return Retry(
        limit=limit,
        backoff_s=_duration_s(backoff.at("duration")),
        factor=_count(backoff.at("factor")) if backoff.has("factor") else 1,
        cap_s=_duration_s(backoff.at("cap")) if backoff.has("cap") else float("inf"),
    )


def _count(place: Place) -> int:
    if not place.text().isdecimal():
        raise place.wrong("a whole number from 0")
    return int(place.text())


def _duration_s(place: Place) -> int:
    match = re.fullmatch(r"(\d+)([smh]?)", place.text())
    if not match:
        raise place.wrong("a whole number with s, m or h, as in '5s'")
    return int(match[1]) * _UNIT_S[match[2]]
