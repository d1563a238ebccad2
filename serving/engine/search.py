"""What the loop asks of a search: greedy search, sampling and beam search answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serving.engine.request import Hypothesis
from serving.engine.runner import Ask, Candidates
from serving.engine.trail import Mark


@dataclass(frozen=True)
class Advance:
    """How a sequence goes on.

    Attributes:
        token_ids: The next token of each of its rows, (width,).
        copies: (source, target) rows within the sequence: beams that share a parent.
        mark: What the request asked to know of the first row's token, if anything.
    """

    token_ids: tuple[int, ...]
    copies: tuple[tuple[int, int], ...] = ()
    mark: Mark | None = None


class Search(Protocol):
    """One sequence's choices. Touches no tensor of the model, knows no neighbour."""

    @property
    def asks(self) -> tuple[Ask, ...]:
        """What each of its rows must be told at the next step; for the prefill, only the first."""
        ...

    def advance(self, candidates: Candidates, first: int) -> Advance | None:
        """Chooses next tokens; None when the sequence has ended.

        Args:
            candidates: Those of all sequences in the call.
            first: The sequence's first row in them; after the prefill it has only that one.
        """
        ...

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The answer, best first; only after the end."""
        ...
