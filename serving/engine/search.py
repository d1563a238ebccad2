"""What the loop asks of a search: greedy and beam search answer, sampling will."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serving.engine.request import Hypothesis
from serving.engine.runner import Candidates


@dataclass(frozen=True)
class Advance:
    """How a sequence goes on.

    Attributes:
        token_ids: The next token of each of its rows, (width,).
        copies: (source, target) rows within the sequence: beams that share a parent.
    """

    token_ids: tuple[int, ...]
    copies: tuple[tuple[int, int], ...] = ()


class Search(Protocol):
    """One sequence's choices. Touches no tensor of the model, knows no neighbour."""

    @property
    def candidates_needed(self) -> int:
        """How many candidates each of its rows must be given at the next step."""
        ...

    def advance(self, candidates: Candidates) -> Advance | None:
        """Chooses next tokens; None when the sequence has ended.

        Args:
            candidates: The sequence's rows; after the prefill only its first.
        """
        ...

    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """The answer, best first; only after the end."""
        ...
