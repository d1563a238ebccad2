"""Sampling a token from ranked candidates: temperature, truncation, one uniform number.

The candidates are the best few tokens, with the probability mass of the whole vocabulary. So a draw
is exact, or known to need more candidates, and its result does not depend on their number.

Order of the warpers (`transformers` 5, `GenerationMixin._get_logits_processor`): temperature,
top-k, top-p (Holtzman et al. 2019, arXiv 1904.09751), min-p (Nguyen et al. 2024, arXiv 2407.01082),
typical-p (Meister et al. 2022, arXiv 2202.00666).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.generation import Generation

DEFAULT_CANDIDATES = 64
"""Candidates of a row without `top_k`."""
MAX_CANDIDATES = 256
WHOLE_VOCABULARY = 1 << 31
"""More than any vocabulary has."""
_WIDER = 8

Weights = NDArray[np.float64]


@dataclass(frozen=True)
class Truncated:
    """A truncated distribution.

    Attributes:
        weights: (n,) of the candidates, best first; 0 where truncated.
        mass: Sum of all weights, those of tokens beyond the candidates included.
        is_complete: No token beyond the candidates has any probability.
    """

    weights: Weights
    mass: float
    is_complete: bool


def initial_candidate_count(rules: Generation) -> int:
    """Candidates that decide most draws."""
    if 0 < rules.top_k < MAX_CANDIDATES:
        return rules.top_k + 1  # one more shows whether the last has an equal
    return DEFAULT_CANDIDATES


def widened_count(count: int, rules: Generation) -> int:
    """Candidates to request next, when `count` do not decide the draw.

    Ranking cost grows with the count: eight times as many hold nearly any nucleus, so that the
    whole vocabulary is rarely ranked; typical-p always needs it.
    """
    return WHOLE_VOCABULARY if rules.typical_p < 1 else _WIDER * count


def mass_temperature(rules: Generation) -> float | None:
    """The temperature at which the mass is needed; None where log-probabilities give it."""
    return None if rules.top_k or rules.temperature == 1 else rules.temperature


def truncated(
    log_probs: NDArray[np.float32], rules: Generation, mass: float, *, is_whole: bool
) -> Truncated | None:
    """The distribution after truncation; None when more candidates are needed.

    Args:
        log_probs: (n,) best first; the first is finite.
        mass: Sum over the vocabulary of exp((log_prob - best) / temperature).
        is_whole: The candidates are the whole vocabulary.
    """
    weights = np.exp((log_probs - log_probs[0]).astype(np.float64) / rules.temperature)
    if rules.top_k:
        ranked = _top_k(weights, rules.top_k, is_whole=is_whole)
        if ranked is None:
            return None
        weights, is_whole, mass = ranked, True, float(ranked.cumsum()[-1])
    found = Truncated(weights, mass, is_whole)
    if rules.top_p < 1:
        better = np.concatenate([[0.0], weights.cumsum()[:-1]])  # mass ahead of each
        found = _cut(found, int(np.searchsorted(better, rules.top_p * mass)))
    if rules.min_p > 0:
        found = _cut(found, int(np.count_nonzero(found.weights >= rules.min_p)))
    is_cut = rules.top_p < 1 or rules.min_p > 0 or rules.typical_p < 1
    if is_cut and not found.is_complete:
        return None
    return _typical(found, rules.typical_p) if rules.typical_p < 1 else found


def draw(found: Truncated, uniform: float) -> int | None:
    """Rank of the token at that quantile; None when it is not among the candidates.

    Args:
        uniform: In [0, 1).
    """
    reached = found.weights.cumsum()
    index = int(np.searchsorted(reached, uniform * found.mass, side="right"))
    if index < len(reached):
        return index
    return int(np.searchsorted(reached, reached[-1])) if found.is_complete else None


def uniforms(seed: int | None, sample: int) -> np.random.Generator:
    """A sample's own random numbers: its t-th token takes the t-th (Philox, counter-based).

    Args:
        seed: None seeds from the operating system.
    """
    key = int.from_bytes(os.urandom(8), "little") if seed is None else seed
    return np.random.Generator(np.random.Philox(key=np.array([key, sample], np.uint64)))


def _top_k(weights: Weights, k: int, *, is_whole: bool) -> Weights | None:
    """The first k, and all that equal the k-th."""
    if k >= len(weights):
        return weights if is_whole else None
    count = int(np.count_nonzero(weights >= weights[k - 1]))
    if count == len(weights) and not is_whole:
        return None
    return weights[:count]


def _cut(found: Truncated, count: int) -> Truncated:
    """The first `count`, at least one; unchanged if the cut lies beyond the candidates."""
    if count >= len(found.weights):
        return found
    weights = found.weights[: max(1, count)]
    return Truncated(weights, float(weights.cumsum()[-1]), is_complete=True)


def _typical(found: Truncated, mass: float) -> Truncated:
    """The tokens whose surprisal is nearest to the entropy, up to that mass."""
    alive = found.weights > 0
    weights = found.weights[alive]
    probabilities = weights / weights.sum()
    surprise = -np.log(probabilities)
    distance = np.abs(surprise - (probabilities * surprise).sum())
    order = np.argsort(distance, kind="stable")
    reached = int(np.count_nonzero(probabilities[order].cumsum() < mass))
    farthest = distance[order[min(reached, len(order) - 1)]]
    typical = found.weights.copy()
    typical[np.flatnonzero(alive)[distance > farthest]] = 0
    return Truncated(typical, float(typical.cumsum()[-1]), is_complete=True)
