"""Beam search with the semantics of `transformers` 5 (`GenerationMixin._beam_search`).

Each step looks at the best `max(2, 1 + number of end tokens) x width` continuations of all beams.
Those that end and rank among the first `width` are finished hypotheses; the best `width` that go on
are the next beams. Scores are float32, as there, so that ties fall alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from serving.engine.choosing import Constraint, Policy, allowed, normalised
from serving.engine.request import Hypothesis, Request
from serving.engine.runner import Ask, Candidates, plain
from serving.engine.search import Advance
from serving.engine.trail import Mark, Trail
from serving.errors import InvalidRequest


@dataclass(frozen=True)
class Beam:
    """A running hypothesis and the row, within its sequence, that holds its state."""

    token_ids: tuple[int, ...]
    score: np.float32
    row: int
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Continuation:
    """One candidate: a beam and its next token."""

    parent: Beam
    token_id: int
    score: np.float32
    finish_reason: str | None
    mark: Mark | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The beam's tokens and this one."""
        return (*self.parent.token_ids, self.token_id)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The beam's marks and this one's."""
        return self.parent.marks if self.mark is None else (*self.parent.marks, self.mark)


class BeamSearch:
    """One sequence's beams, best first, and its finished hypotheses, best first."""

    def __init__(self, request: Request) -> None:
        self._rules = request.rules
        self._width = request.rules.num_beams
        self._prompt = request.decoder_ids
        self._policy = Policy(request.rules)
        self._kept = max(2, 1 + len(request.rules.eos_token_ids)) * self._width
        self._trail = Trail(request)
        self._finished: list[Hypothesis] = []
        self._follow([Beam((), np.float32(0), 0)])

    @property
    def asks(self) -> tuple[Ask, ...]:
        """All that are looked at may come from one row, after its banned tokens are dropped."""
        return self._asks

    def advance(self, candidates: Candidates, first: int) -> Advance | None:
        """Chooses the next beams; None when no beam can improve the answer.

        Raises:
            InvalidRequest: the rules ban every token.
        """
        ranked = self._rank(candidates, first)
        if not ranked:
            raise InvalidRequest("the generation rules ban every token: allow at least one")
        length = len(self._beams[0].token_ids) + 1
        self._finish(ranked[: self._width], length)
        running = [one for one in ranked if one.finish_reason is None][: self._width]
        if not running or self._is_settled(running[0].score, length):
            return None
        rows, copies = place([one.parent.row for one in running], self._width)
        self._follow([_grown(one, row) for one, row in zip(running, rows, strict=True)])
        token_ids = [running[0].token_id] * self._width  # rows without a beam repeat a valid token
        for one, row in zip(running, rows, strict=True):
            token_ids[row] = one.token_id
        return Advance(tuple(token_ids), copies)

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The best `num_return_sequences` finished hypotheses."""
        return tuple(self._finished[: self._rules.num_return_sequences])

    def _follow(self, beams: list[Beam]) -> None:
        self._beams = beams
        self._constraints: list[Constraint] = [
            self._policy.constraint(self._prompt, beam.token_ids) for beam in beams
        ]
        asks = [plain(1)] * self._width  # of rows without a beam
        for beam, constraint in zip(beams, self._constraints, strict=True):
            asks[beam.row] = constraint.ask(max(self._kept, self._trail.count))
        self._asks = tuple(asks)

    def _rank(self, candidates: Candidates, first: int) -> list[Continuation]:
        """The best continuations of all beams; of equal scores, the better beam's first."""
        parents: list[Beam] = []
        token_ids: list[int] = []
        scores = []
        marks: list[Callable[[], Mark]] = []  # made of those alone that are looked at
        for beam, constraint in zip(self._beams, self._constraints, strict=True):
            row = first + beam.row
            ids, log_probs = allowed(constraint, candidates.ids[row], candidates.log_probs[row])
            parents += [beam] * len(ids)
            token_ids += ids
            scores.append(log_probs + beam.score)
            if self._trail.is_kept:
                mark = partial(self._trail.mark, ids, log_probs, candidates, row)
                marks += [partial(mark, rank) for rank in range(len(ids))]
        total = np.concatenate(scores)
        order = np.argsort(-total, kind="stable")[: self._kept].tolist()
        length = len(self._beams[0].token_ids) + 1
        constraint = self._constraints[0]  # whether a token is forced depends on the length alone
        reasons = {
            token: self._policy.finish_reason(token, length, constraint) for token in set(token_ids)
        }
        return [
            Continuation(
                parents[i], token_ids[i], total[i], reasons[token_ids[i]],
                marks[i]() if marks else None,
            )
            for i in order
        ]  # fmt: skip

    def _finish(self, best: Sequence[Continuation], length: int) -> None:
        """Keeps the best `width` finished hypotheses, older first among equals."""
        for one in best:
            if one.finish_reason is not None:
                score = normalised(one.score, length, self._rules.length_penalty)
                self._finished.append(
                    self._trail.hypothesis(
                        one.token_ids, float(score), one.finish_reason, one.marks
                    )
                )
        self._finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self._finished[self._width :]

    def _is_settled(self, best_running: np.float32, length: int) -> bool:
        """Whether the search is over although beams could go on."""
        if len(self._finished) < self._width:
            return False
        rules = self._rules
        if rules.early_stopping is True:
            return True
        hopes_for_length = rules.early_stopping == "never" and rules.length_penalty > 0
        hoped_length = rules.max_new_tokens if hopes_for_length else length
        hoped = normalised(best_running, hoped_length, rules.length_penalty)
        return float(hoped) <= self._finished[-1].score


def place(parents: Sequence[int], width: int) -> tuple[list[int], tuple[tuple[int, int], ...]]:
    """Rows for the next beams, and the copies that this takes.

    The first child stays in its parent's row, further children go to rows without a child.

    Args:
        parents: The row of each next beam's parent, best beam first; at most `width`.

    Returns:
        The row of each next beam, and (source, target) pairs; no row is both.
    """
    free = [row for row in range(width) if row not in parents]
    rows, copies, taken = [], [], set()
    for parent in parents:
        row = parent
        if parent in taken:
            row = free.pop(0)
            copies.append((parent, row))
        taken.add(parent)
        rows.append(row)
    return rows, tuple(copies)


def _grown(one: Continuation, row: int) -> Beam:
    return Beam(one.token_ids, one.score, row, one.marks)
