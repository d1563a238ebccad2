"""What the loop asks of a search: greedy search, sampling and beam search answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from serving.engine.request import Hypothesis
from serving.engine.runners.candidates import CandidateRequest
from serving.engine.search.ranking import Beams, SearchInput
from serving.engine.search.token_trace import TokenRecord


class StepResult(NamedTuple):
    """How a sequence goes on.

    Attributes:
        token_ids: The next token of each of its rows, (width,).
        copies: (source, target) rows within the sequence: beams that share a parent.
        record: What the request asked to know of the first row's token, if anything.
    """

    token_ids: Sequence[int]
    copies: tuple[tuple[int, int], ...] = ()
    record: TokenRecord | None = None


class Search(Protocol):
    """One sequence's choices. Touches no tensor of the model, knows no neighbour."""

    @property
    def row_requests(self) -> Sequence[CandidateRequest]:
        """What each of its rows must be told at the next step; for the prefill, only the first."""
        ...

    @property
    def beams(self) -> Beams | None:
        """Hypotheses whose continuations are to be ranked in one order, if that is needed."""
        ...

    def advance(self, search_input: SearchInput) -> StepResult | None:
        """Chooses next tokens; None when the sequence has ended."""
        ...

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The answer, best first; only after the end."""
        ...
