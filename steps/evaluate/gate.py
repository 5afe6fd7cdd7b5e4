"""The gate: what a model must reach. Written so that whatever is not a finite number fails."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steps.evaluate import Gate


def judge(gate: "Gate", numbers: Mapping[str, Any], completions: Sequence[str]) -> list[str]:
    """Everything that fails, each in words with the number and its limit; empty when the model passes.

    Args:
        numbers: loss, bits_per_byte, baseline_loss.
        completions: raw, one for each prompt of the gate.
    """
    failed = []
    loss = numbers.get("loss")
    if not at_most(loss, gate.max_loss):
        failed.append(f"loss {shown(loss)}, allowed is at most {gate.max_loss:g}")
    if gate.beats == "bigram" and not below(loss, baseline := numbers.get("baseline_loss")):
        failed.append(f"loss {shown(loss)}, allowed is less than the bigram model's {shown(baseline)}")
    bits = numbers.get("bits_per_byte")
    if not at_most(bits, math.inf):
        failed.append(f"bits_per_byte {shown(bits)}, allowed is a finite number")
    passing = sum(passes(text, gate.expect_any) for text in completions)
    if not passing >= gate.min_passing:
        failed.append(f"completions passing {passing} of {len(completions)}, allowed is at least {gate.min_passing}")
    return failed


def at_most(value: Any, limit: Any) -> bool:
    """Whether `value` is a finite number and not above `limit`."""
    return is_finite(value) and is_number(limit) and bool(value <= limit)


def below(value: Any, limit: Any) -> bool:
    """Whether both are finite numbers and `value` is less than `limit`."""
    return is_finite(value) and is_finite(limit) and bool(value < limit)


def is_number(value: Any) -> bool:
    """int or float, NaN and bool excluded."""
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def is_finite(value: Any) -> bool:
    """A number that is no infinity."""
    return is_number(value) and math.isfinite(value)


def passes(completion: str, expect_any: Sequence[str]) -> bool:
    """Whether `completion` has one of the words whole; letters, digits and _ next to it make it another word."""
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", completion) for word in expect_any)


def shown(value: Any) -> str:
    """A number for people, anything else as Python shows it."""
    return f"{value:.4f}" if is_number(value) else repr(value)
