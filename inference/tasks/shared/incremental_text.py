"""The text of a sequence while its tokens arrive."""

from __future__ import annotations

from collections.abc import Sequence

from inference.generation import TokenChunk, concatenate
from inference.processing.detokenizer import Filter
from inference.processing.tokenizer import Tokenizer


class StopStrings:
    """Passes a text on until a stop string is complete in it.

    The string that is complete first ends the text; of several that are complete at the same
    character, the longest. How the text is cut into pieces makes no difference.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._first_characters = {string[0] for string in strings}
        self._longest = max(map(len, strings), default=0)
        self._held = ""
        self.is_stopped = False

    def add(self, text: str) -> str:
        """The text that is certain; an end that may begin a stop string is held back."""
        if self.is_stopped:
            return ""
        text = self._held + text
        found = [
            (start + len(string), -len(string))
            for string in self._strings
            if (start := text.find(string)) >= 0
        ]
        if found:
            end, minus_length = min(found)
            self.is_stopped = True
            self._held = ""
            return text[: end + minus_length]
        certain = self._certain(text)
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """The text that was held back; nothing may be added afterwards."""
        held, self._held = self._held, ""
        return held

    def _certain(self, text: str) -> int:
        """Length of the text before the longest end that begins a stop string."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters:
                end = text[start:]
                if any(string.startswith(end) for string in self._strings):
                    return start
        return len(text)


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
            return self._filter(self._detokenizer.add(tokens.token_ids))
        text, position = "", 0
        while position < len(tokens.token_ids) and not self.is_stopped:
            text += self._filter(self._detokenizer.add(tokens.token_ids[position : position + 1]))
            position += 1
        self._keep(tokens[:position])
        return text

    def finish(self) -> str:
        """The text that was held back; nothing may be added afterwards."""
        text = self._filter(self._detokenizer.finish())
        if self._trim is not None:
            text += self._stops.add(self._trim.finish())
        return text + self._stops.finish()

    def _keep(self, tokens: TokenChunk) -> None:
        self._kept.append(tokens)
        self.length += len(tokens.token_ids)

    def _filter(self, text: str) -> str:
        if self._beginning:
            text, self._beginning = self._beginning + text, ""
        return self._stops.add(self._trim.add(text) if self._trim else text)
