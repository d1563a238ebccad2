"""Beam search with the semantics of `transformers` 5 (`GenerationMixin._beam_search`).

Each step looks at the best `max(2, 1 + number of end tokens) x width` continuations of all beams.
Those that end and rank among the first `width` are finished hypotheses; the best `width` others
are the next beams. Scores are float32, as there, so that ties fall alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from inference.engine.request import EngineRequest
from inference.engine.runners.candidates import CandidateRequest, plain_request
from inference.engine.search.logits_processors import (
    Constraint,
    LogitsProcessors,
    TokenRecord,
    TokenTrace,
    apply_length_penalty,
    keep_allowed,
    no_token_left,
)
from inference.engine.search.protocol import Beams, Continuations, Search, SearchInput, StepResult
from inference.generation import Hypothesis


class Step(NamedTuple):
    """The beams after one step, best first.

    Attributes:
        parents: Index of each beam's parent in the step before.
        records: Of the tokens, if the request needs them.
    """

    parents: list[int]
    token_ids: list[int]
    records: list[TokenRecord]


class Ending(NamedTuple):
    """A finished hypothesis: a beam of the step before its last token, and that token."""

    score: float
    finish_reason: str
    length: int
    parent: int
    token_id: int
    record: TokenRecord | None


class BeamSearch(Search):
    """One sequence's beams, best first, and its finished hypotheses, best first.

    Tokens are stored as steps with parent indices and collected only for returned hypotheses, so
    dropped beams cost nothing more.
    """

    def __init__(self, request: EngineRequest) -> None:
        self._rules = request.rules
        self._width = request.rules.num_beams
        self._policy = LogitsProcessors(request.rules)
        self._prompt_length = len(request.decoder_ids)
        self._ends = frozenset(request.rules.eos_token_ids)
        self._kept = max(2, 1 + len(self._ends)) * self._width
        self._trace = TokenTrace(request)
        self._steps: list[Step] = []
        self._finished: list[Ending] = []
        self._constraints: list[Constraint] = []
        self._histories = [self._policy.start(request.decoder_ids, request.unscored_token)]
        self._follow((0,), (0.0,))

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """Enough that all continuations may come from one row, without its banned tokens."""
        return self._row_requests

    @property
    def beams(self) -> Beams | None:
        return self._beams

    def advance(self, search_input: SearchInput) -> StepResult | None:
        best = search_input.continuations
        assert best is not None, "continuations of beams are ranked"
        if not best.token_ids:
            raise no_token_left()
        length = len(self._steps) + 1
        going: Sequence[int] = range(len(best.token_ids))
        if length >= self._rules.max_new_tokens or not self._ends.isdisjoint(best.token_ids):
            going = self._end(best, length, search_input)
        going = going[: self._width]
        if not going or self._is_settled(best.scores[going[0]], length):
            return None
        return self._continue(best, going, search_input)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The best `num_return_sequences` finished hypotheses."""
        returned = self._finished[: self._rules.num_return_sequences]
        return tuple(self._hypothesis(one) for one in returned)

    def _end(self, best: Continuations, length: int, search_input: SearchInput) -> Sequence[int]:
        """Keeps the best `width` finished hypotheses, older first among equals.

        Returns:
            Indices of the continuations that run on.
        """
        constraint = self._constraints[0]  # whether a token is forced depends on the length alone
        reasons = [self._policy.finish_reason(i, length, constraint) for i in best.token_ids]
        for index, reason in enumerate(reasons[: self._width]):
            if reason is not None:
                score = apply_length_penalty(best.scores[index], length, self._rules.length_penalty)
                record = self._record(best, index, search_input) if self._trace.is_enabled else None
                place = best.parents[index], best.token_ids[index]
                self._finished.append(Ending(float(score), reason, length, *place, record))
        self._finished.sort(key=lambda one: -one.score)
        del self._finished[self._width :]
        return [index for index, reason in enumerate(reasons) if reason is None]

    def _is_settled(self, best_running: float, length: int) -> bool:
        """Whether the search is over although beams could run on."""
        if len(self._finished) < self._width:
            return False
        rules = self._rules
        if rules.early_stopping is True:
            return True
        assumes_max_length = rules.early_stopping == "never" and rules.length_penalty > 0
        final_length = rules.max_new_tokens if assumes_max_length else length
        attainable = apply_length_penalty(best_running, final_length, rules.length_penalty)
        return float(attainable) <= self._finished[-1].score

    def _continue(
        self, best: Continuations, going: Sequence[int], search_input: SearchInput
    ) -> StepResult:
        """Makes these continuations the next beams."""
        parents = [best.parents[index] for index in going]
        token_ids = [best.token_ids[index] for index in going]
        is_kept = self._trace.is_enabled
        records = [self._record(best, index, search_input) for index in going] if is_kept else []
        self._steps.append(Step(parents, token_ids, records))
        if self._policy.follows_history:  # else they are needed at the end only
            self._histories = [self._histories[parent].copy() for parent in parents]
            for history, token in zip(self._histories, token_ids, strict=True):
                history.accept(token)
        old_rows = self._beams.rows
        placement = place(tuple([old_rows[parent] for parent in parents]), self._width)
        self._follow(placement.rows, [best.scores[index] for index in going])
        return StepResult([token_ids[beam] for beam in placement.beams], placement.copies)

    def _follow(self, rows: Sequence[int], scores: Sequence[float]) -> None:
        """Sets the running beams; their tokens are in the last step."""
        missing = self._width - len(rows) if self._steps else 0
        self._constrain(rows)
        if missing:
            rows, scores = (*rows, *[0] * missing), (*scores, *[-np.inf] * missing)
        self._beams = Beams(rows, scores, self._active_constraints, self._kept)

    def _constrain(self, rows: Sequence[int]) -> None:
        """Sets constraints and candidate requests of the beams in these rows."""
        done = len(self._steps)
        common = self._policy.common(self._prompt_length, done)
        if common is not None:
            constraints = [common] * len(rows)
            if constraints == self._constraints and len(rows) == self._width:
                return
        else:
            constraints = [self._policy.constraint(one) for one in self._histories]
        self._constraints = constraints
        self._active_constraints = constraints if any(one.drops for one in constraints) else []
        self._row_requests = [plain_request(1)] * self._width  # of rows without a beam
        for row, constraint in zip(rows, constraints, strict=True):
            self._row_requests[row] = constraint.row_request(max(self._kept, self._trace.count))

    def _path(self, length: int, beam: int) -> list[tuple[Step, int]]:
        """The first `length` steps, each with the index of the beam's ancestor in it."""
        path = []
        for step in reversed(self._steps[:length]):
            path.append((step, beam))
            beam = step.parents[beam]
        return path[::-1]

    def _hypothesis(self, one: Ending) -> Hypothesis:
        path = self._path(one.length - 1, one.parent)
        token_ids = [step.token_ids[place] for step, place in path]
        records = [step.records[place] for step, place in path if step.records]
        if one.record is not None:
            records.append(one.record)
        return self._trace.hypothesis(
            [*token_ids, one.token_id], one.score, one.finish_reason, records
        )

    def _record(self, best: Continuations, index: int, search_input: SearchInput) -> TokenRecord:
        """The record of one continuation's token."""
        parent, token_id = best.parents[index], best.token_ids[index]
        row = search_input.first + self._beams.rows[parent]
        ids, log_probs = keep_allowed(
            self._constraints[parent],
            search_input.candidates.ids[row],
            search_input.candidates.log_probs[row],
        )
        return self._trace.record(ids, log_probs, search_input.candidates, row, ids.index(token_id))


class Placement(NamedTuple):
    """Rows of a sequence's next beams, and the copies this needs.

    Attributes:
        rows: The row of each beam.
        beams: The beam of each row; the best where there is none.
        copies: (source, target) rows; no row is both.
    """

    rows: tuple[int, ...]
    beams: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]


@lru_cache(maxsize=4096)
def place(parents: tuple[int, ...], width: int) -> Placement:
    """The first child stays in its parent's row, further children go to rows without a child.

    Args:
        parents: The row of each next beam's parent, best beam first; at most `width`.
    """
    free = [row for row in range(width) if row not in parents]
    rows: list[int] = []
    copies = []
    for parent in parents:
        row = parent
        if parent in rows:
            row = free.pop(0)
            copies.append((parent, row))
        rows.append(row)
    beams = [rows.index(row) if row in rows else 0 for row in range(width)]
    return Placement(tuple(rows), tuple(beams), tuple(copies))
