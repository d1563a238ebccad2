"""The protocol between the decode loop and greedy search, sampling and beam search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference.engine.runners.candidates import CandidateRequest
from inference.engine.search.ranking import Beams, SearchInput
from inference.engine.search.token_trace import TokenRecord
from inference.sequences import Hypothesis


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


class Search(Protocol):
    """Chooses one sequence's tokens, independently of others; touches no model tensor."""

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """Candidates that each row needs at the next step; after prefill only the first row's."""
        ...

    @property
    def beams(self) -> Beams | None:
        """Beams whose continuations are ranked together before `advance`, if any."""
        ...

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Chooses next tokens; None when the sequence has ended."""
        ...

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The result, best first; valid after the end."""
        ...
