"""The protocol between the decode loop and greedy search, sampling and beam search.

Candidates and the ranked continuations of beams go in, the next tokens come out. One sort ranks the
beams of all sequences of a call: on a small model thirty sorts of thirty numbers take longer than
the model's step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from inference.engine.runners.candidates import CandidateRequest, Candidates, GreedyRule
from inference.engine.search.logits_processors import Constraint, TokenRecord
from inference.generation import Hypothesis


class Beams(NamedTuple):
    """Running hypotheses of one sequence, best first: as many as it has rows in the call.

    Attributes:
        rows: The row of each, within the sequence.
        scores: Of each, float32 numbers; minus infinity where none is left.
        constraints: Of each; none where nothing is forced or dropped.
        wanted: Continuations that the search considers.
    """

    rows: Sequence[int]
    scores: Sequence[float]
    constraints: Sequence[Constraint]
    wanted: int


class Continuations(NamedTuple):
    """Beams and a next token, best first; of equal scores, the better beam's first.

    Attributes:
        parents: Places of the beams in `Beams`.
        scores: Float32 numbers.
    """

    parents: list[int]
    token_ids: list[int]
    scores: list[float]


class SearchInput(NamedTuple):
    """Input of one sequence's search.

    Attributes:
        candidates: Of all sequences in the call.
        first: The sequence's first row in them; its only one after prefill.
        continuations: Allowed continuations of its beams, if it has beams.
    """

    candidates: Candidates
    first: int
    continuations: Continuations | None = None


class StepResult(NamedTuple):
    """The next step of a sequence.

    Attributes:
        token_ids: The next token of each of its rows, (width,).
        copies: (source, target) rows within the sequence: beams that share a parent.
        record: Log-probabilities and alignment of the first row's token, if requested.
    """

    token_ids: Sequence[int]
    copies: tuple[tuple[int, int], ...] = ()
    record: TokenRecord | None = None


class Search(ABC):
    """Chooses one sequence's tokens, independently of others; touches no model tensor."""

    @property
    @abstractmethod
    def row_requests(self) -> Sequence[CandidateRequest]:
        """Candidates that each row needs at the next step; after prefill only the first row's."""

    @property
    def beams(self) -> Beams | None:
        """Beams whose continuations are ranked together before `advance`, if any."""
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the tokens of a sequence that goes on ended it; only one row can go on."""
        return False

    @property
    def follows_history(self) -> bool:
        """Whether more than scores decides which token follows, so that drafts are of no use."""
        return True

    @property
    def greedy_rule(self) -> GreedyRule | None:
        """What the next steps follow if they are greedy; None where each must be seen."""
        return None

    @property
    def steps_of_rule(self) -> int:
        """How many of the next steps follow `greedy_rule`, whatever their tokens are."""
        return 0

    @abstractmethod
    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Chooses next tokens; None when the sequence has ended."""

    @abstractmethod
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The result, best first; valid after the end."""


def search_inputs(
    candidates: Candidates, beams: Sequence[Beams | None], rows_each: int, start: int = 0
) -> list[SearchInput]:
    """One input per sequence.

    Args:
        beams: One per sequence; None without beams.
        rows_each: Rows of each sequence in the candidates.
        start: The first sequence's first row.
    """
    firsts = [start + index * rows_each for index in range(len(beams))]
    ranking = [(one, first) for one, first in zip(beams, firsts, strict=True) if one is not None]
    ranked = iter(rank(candidates, ranking) if ranking else ())
    return [
        SearchInput(candidates, first, None if one is None else next(ranked))
        for one, first in zip(beams, firsts, strict=True)
    ]


def rank(candidates: Candidates, ranking: Sequence[tuple[Beams, int]]) -> list[Continuations]:
    """The best continuations of each sequence's beams.

    Args:
        ranking: Beams, and their sequence's first row in the candidates.
    """
    firsts = np.array([first for _, first in ranking])
    rows = firsts[:, None] + np.array([one.rows for one, _ in ranking])
    scores = np.array([one.scores for one, _ in ranking], np.float32)
    token_ids = candidates.token_ids[rows]  # (sequences, width, k)
    totals = candidates.log_probs[rows] + scores[:, :, None]
    for index, (one, _) in enumerate(ranking):
        if one.constraints:
            _constrain(token_ids[index], totals[index], one)
    return _best(token_ids, totals, [one.wanted for one, _ in ranking])


def _constrain(token_ids: NDArray[np.int64], totals: NDArray[np.float32], beams: Beams) -> None:
    """Sets what is not allowed of one sequence's (width, k) to minus infinity."""
    for place, constraint in enumerate(beams.constraints):
        if constraint.forced is not None:
            token_ids[place, 0], totals[place] = constraint.forced, -np.inf
            totals[place, 0] = beams.scores[place]
        elif constraint.banned:
            ids = token_ids[place].tolist()
            if not constraint.banned.isdisjoint(ids):
                totals[place, [token in constraint.banned for token in ids]] = -np.inf


def _best(
    token_ids: NDArray[np.int64], totals: NDArray[np.float32], counts: Sequence[int]
) -> list[Continuations]:
    """The best `counts` of each sequence; minus infinity and NaN are no continuations."""
    sequences, _, k = totals.shape
    totals, token_ids = totals.reshape(sequences, -1), token_ids.reshape(sequences, -1)
    order = np.argsort(-totals, axis=1, kind="stable")[:, : max(counts)]
    places = np.arange(sequences)[:, None], order
    scores = totals[places]
    columns = (order // k).tolist(), token_ids[places].tolist(), scores.tolist()
    alive = (scores > -np.inf).sum(axis=1).tolist()
    found = list(map(Continuations, *columns))
    for index, stop in enumerate(map(min, alive, counts)):
        if stop < len(columns[0][index]):
            found[index] = Continuations(*(column[index][:stop] for column in columns))
    return found
