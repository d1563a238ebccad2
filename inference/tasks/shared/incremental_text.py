"""The text of a sequence while its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence

from inference.processing.detokenizer import Filter
from inference.processing.stops import StopStrings
from inference.processing.tokenizer import Tokenizer
from inference.sequences import TokenChunk, concatenate


class IncrementalText:
    """The text of one sequence, as far as it is certain, until its end or a stop string.

    Args:
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
        self._kept: list[TokenChunk] = []
        self.length = 0
        """Tokens so far; the one that completes a stop string is the last."""

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string was found: later tokens are not read."""
        return self._stops.is_stopped

    @property
    def tokens(self) -> TokenChunk:
        """All tokens so far."""
        return concatenate(self._kept)

    def add(self, tokens: TokenChunk) -> str:
        """The text that these tokens make certain; often empty."""
        if not self._has_stops:
            self._keep(tokens)
            return self._filtered(self._detokenizer.add(tokens.token_ids))
        text, position = "", 0
        while position < len(tokens.token_ids) and not self.is_stopped:
            text += self._filtered(self._detokenizer.add(tokens.token_ids[position : position + 1]))
            position += 1
        self._keep(tokens[:position])
        return text

    def finish(self) -> str:
        """The text that was held back; nothing may be added afterwards."""
        text = self._filtered(self._detokenizer.finish())
        if self._trim is not None:
            text += self._stops.add(self._trim.finish())
        return text + self._stops.finish()

    def _keep(self, tokens: TokenChunk) -> None:
        self._kept.append(tokens)
        self.length += len(tokens.token_ids)

    def _filtered(self, text: str) -> str:
        if self._beginning:
            text, self._beginning = self._beginning + text, ""
        return self._stops.add(self._trim.add(text) if self._trim else text)
