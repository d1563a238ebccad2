"""Tokens of a sequence, and their text while they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inference.processing.detokenizer import Filter
from inference.processing.stops import StopStrings
from inference.processing.tokenizer import Tokenizer

Top: TypeAlias = tuple[tuple[int, float], ...]
"""The most likely tokens at one position and their log-probabilities, best first."""


@dataclass(frozen=True)
class Tokens:
    """Tokens of a stream that arrived together.

    `log_probs` and `top` have an entry for each token, or are empty if not requested.
    """

    ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    top: tuple[Top, ...] = ()

    def __getitem__(self, part: slice) -> Tokens:
        """A slice of the tokens."""
        return Tokens(self.ids[part], self.log_probs[part], self.top[part])


class IncrementalText:
    """The text of one sequence, as far as it is certain, until its end or a stop string.

    Args:
        tokenizer: The model's.
        stops: The text ends before the first of these.
        begins_with: Token ids at the beginning of the text that were not generated.
        trim: Filter of the text, applied before stop strings are searched.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        begins_with: Sequence[int] = (),
        trim: Filter | None = None,
    ) -> None:
        self._detokenizer = tokenizer.detokenizer()
        self._trim = trim
        self._stops = StopStrings(stops)
        self._has_stops = bool(stops)
        self._beginning = self._detokenizer.add(begins_with) if begins_with else ""
        self._kept: list[Tokens] = []
        self.length = 0
        """Tokens so far; the one that completes a stop string is the last."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found: later tokens are not read."""
        return self._stops.is_stopped

    @property
    def tokens(self) -> Tokens:
        """All tokens so far."""
        return Tokens(
            ids=tuple(number for kept in self._kept for number in kept.ids),
            log_probs=tuple(value for kept in self._kept for value in kept.log_probs),
            top=tuple(best for kept in self._kept for best in kept.top),
        )

    def add(self, tokens: Tokens) -> str:
        """The text that these tokens make certain; often empty."""
        if not self._has_stops:
            self._keep(tokens)
            return self._filtered(self._detokenizer.add(tokens.ids))
        text, position = "", 0
        while position < len(tokens.ids) and not self.is_stopped:
            text += self._filtered(self._detokenizer.add(tokens.ids[position : position + 1]))
            position += 1
        self._keep(tokens[:position])
        return text

    def finish(self) -> str:
        """The text that was held back; nothing may be added afterwards."""
        text = self._filtered(self._detokenizer.finish())
        if self._trim is not None:
            text += self._stops.add(self._trim.finish())
        return text + self._stops.finish()

    def _keep(self, tokens: Tokens) -> None:
        self._kept.append(tokens)
        self.length += len(tokens.ids)

    def _filtered(self, text: str) -> str:
        if self._beginning:
            text, self._beginning = self._beginning + text, ""
        return self._stops.add(self._trim.add(text) if self._trim else text)
