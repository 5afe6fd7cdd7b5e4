"""A smoothed bigram model: the least that a trained model must beat.

    P(b | a) = (c(a, b) + k P(b)) / (c(a) + k)        P(b) = (c(b) + 1) / (N + V)

with c counted on the training split, N tokens of V kinds: interpolation with the add-one unigram
model, weight k / (c(a) + k), a Dirichlet prior (MacKay and Peto 1995). k is the one of STRENGTHS
with the least loss on the very tokens that are judged, so that the bar is never too low.

Only the pairs that are judged are counted, so memory is bounded by them whatever the vocabulary.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
MAX_TOKENS = 200_000_000
"""Counted from the start of the training split: more does not change a bigram model much."""
_DENSE_VOCABULARY = 4096
"""Up to here a pair is found in a table of V x V int32, 64 MiB at most; above by binary search."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the loss needs to know of the training split, for each judged pair of tokens.

    pairs = number of different (a, b) among the judged tokens
    """

    times: "NDArray[np.int64]"
    """[pairs] How often the pair is judged."""
    pair: "NDArray[np.int64]"
    """[pairs] c(a, b)."""
    first: "NDArray[np.int64]"
    """[pairs] c(a): how often a is followed by anything."""
    second: "NDArray[np.int64]"
    """[pairs] c(b)."""
    num_tokens: int
    """N."""
    vocab_size: int
    """V."""


def count(
    chunks: "Iterable[NDArray[np.integer]]",
    firsts: "NDArray[np.integer]",
    seconds: "NDArray[np.integer]",
    vocab_size: int,
) -> Counts:
    """Count the training split for the judged pairs (firsts[i], seconds[i]).

    Args:
        chunks: the training split's tokens in order; pairs across chunks count too.
    """
    import numpy as np

    judged, times = np.unique(_codes(firsts, seconds, vocab_size), return_counts=True)
    find = _finder(judged, vocab_size)
    pair = np.zeros(len(judged), np.int64)
    follows, unigram = np.zeros(vocab_size, np.int64), np.zeros(vocab_size, np.int64)
    last, total = np.zeros(0, np.int64), 0
    for chunk in chunks:
        tokens = np.concatenate([last, chunk[: MAX_TOKENS - total]]).astype(np.int64)
        unigram += np.bincount(tokens[len(last) :], minlength=vocab_size)
        follows += np.bincount(tokens[:-1], minlength=vocab_size)
        pair += np.bincount(find(_codes(tokens[:-1], tokens[1:], vocab_size)), minlength=len(judged) + 1)[:-1]
        total += len(tokens) - len(last)
        last = tokens[-1:]
        if total >= MAX_TOKENS:
            break
    a, b = judged // vocab_size, judged % vocab_size
    return Counts(times=times, pair=pair, first=follows[a], second=unigram[b], num_tokens=total, vocab_size=vocab_size)


def loss(counts: Counts, strength: float) -> float:
    """Mean nats a judged token with k = `strength`."""
    import numpy as np

    unigram = (counts.second + 1) / (counts.num_tokens + counts.vocab_size)
    bigram = (counts.pair + strength * unigram) / (counts.first + strength)
    return float(-(counts.times * np.log(bigram)).sum() / counts.times.sum())


def best_loss(counts: Counts) -> tuple[float, float]:
    """The least loss over STRENGTHS and its strength."""
    return min((loss(counts, strength), strength) for strength in STRENGTHS)


def _codes(firsts: "NDArray[np.integer]", seconds: "NDArray[np.integer]", vocab_size: int) -> "NDArray[np.int64]":
    """[n], [n] -> [n], one number for each pair."""
    import numpy as np

    return firsts.astype(np.int64) * vocab_size + seconds


def _finder(judged: "NDArray[np.int64]", vocab_size: int) -> "Callable[[NDArray[np.int64]], NDArray[np.integer]]":
    """A function codes [n] -> places in `judged` [n]; len(judged) for a pair that is not judged."""
    import numpy as np

    if vocab_size <= _DENSE_VOCABULARY:
        table = np.full(vocab_size * vocab_size, len(judged), np.int32)
        table[judged] = np.arange(len(judged))
        return lambda codes: table[codes]

    def search(codes: "NDArray[np.int64]") -> "NDArray[np.integer]":
        places = np.searchsorted(judged, codes)
        found = judged[np.minimum(places, len(judged) - 1)] == codes
        return np.where(found, places, len(judged))

    return search
