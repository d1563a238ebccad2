"""Sampling: one or several samples of one request, from ranked candidates.

The candidates are the best few tokens, with the probability mass of the whole vocabulary. So a draw
is exact, or known to need more candidates, and its result does not depend on their number.

Order of the warpers (`transformers` 5, `GenerationMixin._get_logits_processor`): temperature,
top-k, top-p (Holtzman et al. 2019, arXiv 1904.09751), min-p (Nguyen et al. 2024, arXiv 2407.01082),
typical-p (Meister et al. 2022, arXiv 2202.00666).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import CandidateRequest, Candidates, plain_request
from inference.engine.search.logits_processors import (
    Constraint,
    LogitsProcessors,
    TokenHistory,
    TokenRecord,
    TokenTrace,
    apply_length_penalty,
    no_token_left,
)
from inference.engine.search.protocol import Search, SearchInput, StepResult
from inference.generation import Generation, Hypothesis

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


def truncate(
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


@dataclass
class Sample:
    """One running sample; its row is its number."""

    uniforms: np.random.Generator
    policy: LogitsProcessors
    history: TokenHistory
    constraint: Constraint
    row_request: CandidateRequest
    tokens: list[int] = field(default_factory=list)
    records: list[TokenRecord] = field(default_factory=list)
    score: np.float32 = field(default_factory=np.float32)
    finish_reason: str | None = None


class SampleSearch(Search):
    """`rules.rows` samples. A finished sample keeps its row until all have finished.

    A sample's tokens depend on seed, sample number and its own history only, so the first of
    several equals a single one. Scores and log-probabilities are of the distribution after
    penalties and bans, at temperature 1 and before truncation.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._rules = request.rules
        policies = [LogitsProcessors(request.rules, request.grammar)] * request.rules.rows
        if request.grammar is not None:  # each sample has a place of its own in it
            policies = [LogitsProcessors(request.rules, request.grammar) for _ in policies]
        self._trace = TokenTrace(request)
        self._count = max(initial_candidate_count(request.rules), self._trace.count)
        self._temperature = mass_temperature(request.rules)
        start = policies[0].start(request.decoder_ids, request.unscored_token)
        before = request.rules.generated_ids  # of one sample
        reason = policies[0].replay(start, before)
        constraint = policies[0].constraint(start)
        row_request = self._row_request(constraint)
        self._samples = [
            Sample(
                uniforms(request.rules.seed, number), policy, start.copy(), constraint, row_request
            )
            for number, policy in enumerate(policies)
        ]
        for sample in self._samples:
            sample.uniforms.random(len(before))
            sample.tokens += before
            sample.finish_reason = reason

    @property
    def has_ended(self) -> bool:
        return all(one.finish_reason is not None for one in self._samples)

    @property
    def row_requests(self) -> tuple[CandidateRequest, ...]:
        """What each sample's row needs; a minimum once it has finished."""
        return tuple(
            plain_request(1) if one.finish_reason else one.row_request for one in self._samples
        )

    @property
    def follows_history(self) -> bool:
        return self._samples[0].policy.follows_history

    def advance(self, search_input: SearchInput) -> StepResult | None:
        candidates, first, _ = search_input
        is_prefill = not self._samples[0].tokens
        for row, sample in enumerate(self._samples):
            if sample.finish_reason is None:
                self._extend(sample, candidates, first if is_prefill else first + row)
        live = [row for row, one in enumerate(self._samples) if one.finish_reason is None]
        if not live:
            return None
        copies = tuple((0, row) for row in live if row) if is_prefill else ()
        records = self._samples[0].records
        token_ids = tuple(one.tokens[-1] for one in self._samples)  # finished ones repeat theirs
        return StepResult(token_ids, copies, records[-1] if records else None)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """In the order of sampling; with `best_of` the best, by mean log-probability."""
        found = [self._hypothesis(sample) for sample in self._samples]
        if self._rules.best_of is not None:
            means = [one.score / len(one.tokens) for one in self._samples]
            best = sorted(range(len(found)), key=lambda row: -means[row])
            found = [found[row] for row in best]
        return tuple(found[: self._rules.num_return_sequences])

    def _row_request(self, constraint: Constraint) -> CandidateRequest:
        return constraint.row_request(self._count, self._temperature)

    def _extend(self, sample: Sample, candidates: Candidates, row: int) -> None:
        """Takes one more token of a sample."""
        uniform = sample.uniforms.random()  # for forced tokens, too: the t-th is the t-th token's
        forced = sample.constraint.forced
        if forced is None:
            ids, log_probs, rank = self._draw(candidates, row, uniform)
        else:
            ids, log_probs, rank = np.array([forced]), np.zeros(1, np.float32), 0
        sample.tokens.append(int(ids[rank]))
        sample.history.accept(sample.tokens[-1])
        sample.score += log_probs[rank]
        if self._trace.is_enabled:
            alive = np.count_nonzero(log_probs > -np.inf)  # banned ones stand last
            best = ids[: min(alive, self._trace.count)].tolist()
            record = self._trace.record(best, log_probs[:alive], candidates, row, rank)
            sample.records.append(record)
        length = len(sample.tokens)
        sample.finish_reason = sample.policy.finish_reason(
            sample.tokens[-1], length, sample.constraint
        )
        if sample.finish_reason is None:
            constraint = sample.policy.constraint(sample.history)
            if constraint is not sample.constraint:
                sample.constraint = constraint
                sample.row_request = self._row_request(constraint)

    def _draw(
        self, candidates: Candidates, row: int, uniform: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """The row's candidates, their log-probabilities, and the rank of the drawn one."""
        ids, log_probs = candidates.token_ids[row], candidates.log_probs[row]
        if not log_probs[0] > -np.inf:  # not a number where nothing is left
            raise no_token_left()
        mass = float(np.exp(-np.float64(log_probs[0])))
        if self._temperature is not None and candidates.masses is not None:
            mass = float(candidates.masses[row])
        count, is_whole = len(ids), False
        while (rank := _rank(log_probs, self._rules, mass, uniform, is_whole=is_whole)) is None:
            assert candidates.more is not None
            assert not is_whole, "the whole vocabulary decides every draw"
            count = widened_count(count, self._rules)
            more = candidates.more(row, count)
            ids, log_probs = more.token_ids[0], more.log_probs[0]
            is_whole = len(ids) < count
        return ids, log_probs, rank

    def _hypothesis(self, sample: Sample) -> Hypothesis:
        assert sample.finish_reason is not None
        score = apply_length_penalty(sample.score, len(sample.tokens), self._rules.length_penalty)
        return self._trace.hypothesis(
            sample.tokens, float(score), sample.finish_reason, sample.records
        )


def _rank(
    log_probs: NDArray[np.float32],
    rules: Generation,
    mass: float,
    uniform: float,
    *,
    is_whole: bool,
) -> int | None:
    found = truncate(log_probs, rules, mass, is_whole=is_whole)
    return None if found is None else draw(found, uniform)
