"""What the search needs of a grammar that outputs must match."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class GrammarState(Protocol):
    """A grammar after the tokens of one output."""

    def banned(self) -> NDArray[np.int64]:
        """Tokens that cannot follow, in order; end tokens where the output is not complete.

        Equal ones are often the same array.

        Raises:
            InvalidRequest: the step would take too long.
        """

    def take(self, token_id: int) -> None:
        """Takes a token that is not banned.

        Raises:
            InvalidRequest: it cannot follow.
        """

    @property
    def accepts(self) -> bool:
        """Whether the output matches as it is."""

    @property
    def is_complete(self) -> bool:
        """Whether it matches and nothing can follow."""


class Grammar(Protocol):
    """A compiled grammar."""

    def start(self) -> GrammarState:
        """A state without tokens; independent of others."""
