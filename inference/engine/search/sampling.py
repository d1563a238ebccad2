"""Sampling: one or several samples of one request, on neighbouring rows that share its prefill."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import CandidateRequest, Candidates, plain_request
from inference.engine.search.logits_processors import Constraint, LogitsProcessors, normalised
from inference.engine.search.protocol import Search, SearchInput, StepResult
from inference.engine.search.request import EngineRequest
from inference.engine.search.token_history import TokenHistory
from inference.engine.search.token_trace import TokenRecord, TokenTrace
from inference.engine.search.truncation import (
    draw,
    initial_candidate_count,
    mass_temperature,
    truncated,
    uniforms,
    widened_count,
)
from inference.errors import InvalidRequest
from inference.generation import Generation
from inference.sequences import Hypothesis


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
        start = policies[0].start(request.decoder_ids)
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
        """Whether every sample has ended."""
        return all(one.finish_reason is not None for one in self._samples)

    @property
    def row_requests(self) -> tuple[CandidateRequest, ...]:
        """What each sample's row needs; a minimum once it has finished."""
        return tuple(
            plain_request(1) if one.finish_reason else one.row_request for one in self._samples
        )

    @property
    def follows_history(self) -> bool:
        """Whether constraints depend on the tokens that were chosen."""
        return self._samples[0].policy.follows_history

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Draws each live sample's next token; None when all have ended.

        Raises:
            InvalidRequest: the rules ban every token.
        """
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
        token_ids = tuple(
            sample.tokens[-1] for sample in self._samples
        )  # finished samples repeat theirs
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
        uniform = (
            sample.uniforms.random()
        )  # also for a forced token: the t-th number is the t-th token's
        forced = sample.constraint.forced
        if forced is None:
            ids, log_probs, rank = self._drawn(candidates, row, uniform)
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
                sample.constraint, sample.row_request = (
                    constraint,
                    self._row_request(constraint),
                )

    def _drawn(
        self, candidates: Candidates, row: int, uniform: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], int]:
        """The row's candidates, their log-probabilities, and the rank of the drawn one."""
        ids, log_probs = candidates.token_ids[row], candidates.log_probs[row]
        if not log_probs[0] > -np.inf:  # not a number where nothing is left
            raise InvalidRequest("the generation rules ban every token: allow at least one")
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
        score = normalised(sample.score, len(sample.tokens), self._rules.length_penalty)
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
    found = truncated(log_probs, rules, mass, is_whole=is_whole)
    return None if found is None else draw(found, uniform)
