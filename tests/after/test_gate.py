"""The gate: whatever is not a finite number fails, in both directions (cases.md E05)."""

import math

import pytest

from steps.evaluate import Gate
from steps.evaluate.gate import at_most, below, judge, passes

GOOD = {"loss": 2.0, "bits_per_byte": 1.0, "baseline_loss": 3.0}
BIGRAM = Gate(max_loss=2.5, beats="bigram")
NO_NUMBERS = [math.nan, math.inf, -math.inf, "2.0", None, True, [2.0]]


def test_a_good_model_passes():
    assert judge(BIGRAM, GOOD, []) == []
    assert judge(Gate(max_loss=2.0), {**GOOD, "baseline_loss": 0.0}, []) == [], "at the limit, no baseline asked for"


@pytest.mark.parametrize("value", NO_NUMBERS)
@pytest.mark.parametrize("name", ["loss", "bits_per_byte", "baseline_loss"])
def test_what_is_no_finite_number_fails(name, value):
    failed = judge(BIGRAM, {**GOOD, name: value}, [])
    assert failed
    assert all(repr(value) in line or f"{value:.4f}" in line for line in failed)


@pytest.mark.parametrize("name", ["loss", "bits_per_byte", "baseline_loss"])
def test_what_is_missing_fails(name):
    assert judge(BIGRAM, {k: v for k, v in GOOD.items() if k != name}, [])


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_comparisons_fail_both_ways(value):
    assert not at_most(value, 1e9)
    assert not below(value, 1e9)
    assert not below(-1e9, value)


def test_each_failure_names_number_and_limit():
    gate = Gate(max_loss=1.5, beats="bigram", prompts=("a", "b"), expect_any=("def",), min_passing=2)
    assert judge(gate, {"loss": 3.5, "bits_per_byte": 1.0, "baseline_loss": 3.0}, ["def f", "defx"]) == [
        "loss 3.5000, allowed is at most 1.5",
        "loss 3.5000, allowed is less than the bigram model's 3.0000",
        "completions passing 1 of 2, allowed is at least 2",
    ]


def test_a_model_equal_to_the_bigram_model_does_not_beat_it():
    assert judge(BIGRAM, {**GOOD, "loss": 2.4, "baseline_loss": 2.4}, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = def_", False),
        ("def", True),
        ("(def)", True),
        ("undef", False),
        ("éndef", False),
        ("\ndef main", True),
        ("", False),
    ],
)
def test_words_count_whole(text, expected):
    assert passes(text, ["def"]) is expected


def test_words_may_be_signs():
    assert passes("a == b", ["=="])
    assert not passes("anything", [])
