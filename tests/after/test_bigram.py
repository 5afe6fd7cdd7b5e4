"""The bigram baseline against a count by hand and a slow model in plain Python."""

import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from steps.evaluate import bigram


def counted(train: list[list[int]], judged: list[int], vocab_size: int) -> bigram.Counts:
    chunks = [np.array(chunk, np.uint16) for chunk in train]
    tokens = np.array(judged, np.uint16)
    return bigram.count(chunks, tokens[:-1], tokens[1:], vocab_size)


def slow_loss(train: list[int], judged: list[int], vocab_size: int, k: float) -> float:
    """The formula of the module's docstring, word for word."""
    pairs, firsts, singles = Counter(pairwise(train)), Counter(train[:-1]), Counter(train)
    total = 0.0
    for a, b in pairwise(judged):
        unigram = (singles[b] + 1) / (len(train) + vocab_size)
        total -= math.log((pairs[a, b] + k * unigram) / (firsts[a] + k))
    return total / (len(judged) - 1)


def test_a_count_by_hand():
    """Train 0 1 0 1 2, V = 3. P(0) = 3/8, P(1) = 3/8, P(2) = 2/8; c(0 1) = 2 of c(0) = 2; c(1 2) = 1, c(1 0) = 1 of 2.

    k = 1: P(1|0) = (2 + 3/8) / 3 = 19/24, P(2|1) = (1 + 2/8) / 3 = 10/24, P(2|2) = (0 + 2/8) / 1 = 6/24 (2 is last).
    """
    counts = counted([[0, 1, 0], [1, 2]], [0, 1, 2, 2], 3)
    expected = -(math.log(19 / 24) + math.log(10 / 24) + math.log(6 / 24)) / 3
    assert bigram.loss(counts, 1.0) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("vocab_size", [50, 5000])
def test_equals_the_slow_model(vocab_size):
    """50: the table; 5000: binary search."""
    rng = random.Random(vocab_size)
    used = rng.sample(range(vocab_size), 20)
    train = [rng.choice(used) for _ in range(3000)]
    judged = [rng.choice([*used, vocab_size - 1]) for _ in range(400)]
    cuts = [0, 1, 7, 1000, 1000, 3000]
    counts = counted([train[a:b] for a, b in pairwise(cuts)], judged, vocab_size)
    for strength in bigram.STRENGTHS:
        assert bigram.loss(counts, strength) == pytest.approx(slow_loss(train, judged, vocab_size, strength), rel=1e-12)
    best, strength = bigram.best_loss(counts)
    assert best == min(bigram.loss(counts, s) for s in bigram.STRENGTHS) == bigram.loss(counts, strength)


def test_probabilities_of_all_successors_add_up_to_one():
    train, vocab_size = [0, 1, 2, 1, 3, 1, 1], 5
    for first in range(vocab_size):
        seconds = np.arange(vocab_size)
        counts = bigram.count([np.array(train)], np.full(vocab_size, first), seconds, vocab_size)
        each = (counts.pair + 7.0 * (counts.second + 1) / (counts.num_tokens + vocab_size)) / (counts.first + 7.0)
        assert each.sum() == pytest.approx(1.0, rel=1e-12)


def test_counting_stops_at_its_limit(monkeypatch):
    monkeypatch.setattr(bigram, "MAX_TOKENS", 5)
    counts = counted([[0, 1, 0], [1, 2, 2, 2], [2]], [2, 2], 3)
    assert counts.num_tokens == 5
    assert list(counts.pair) == [0], "2 2 comes after the fifth token"
