"""Where tokens begin in the text that they make."""

from __future__ import annotations

from collections.abc import Sequence

from inference.processing.detokenizer import INCOMPLETE
from inference.processing.tokenizer import Tokenizer


class TextOffsets:
    """The place of each token of one sequence: characters of its text before the token's first.

    Tokens that share a character have its place. Places are those of the text that the tokenizer's
    detokenizer returns, which may lack a token's space. Until a character is complete they follow
    from the bytes of the tokens alone.

    Args:
        start: Characters before the first token.
    """

    def __init__(self, tokenizer: Tokenizer, start: int = 0) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = tokenizer.detokenizer()
        self._length = start
        """Characters of the text that is certain."""
        self._pending = b""
        """Bytes behind that text that end within a character."""

    def add(self, ids: Sequence[int]) -> list[int]:
        """The places of further tokens."""
        each = zip(ids, self._tokenizer.bytes_of(ids), strict=True)
        return [self._place(number, own) for number, own in each]

    def _place(self, number: int, own: bytes) -> int:
        before = self._pending + own[:1]
        place = self._length + len(_text(before)) - bool(own)
        self._pending += own
        text = self._detokenizer.add([number])
        if text:
            if text != _text(self._pending):
                place = self._length + max(0, len(text) - len(_text(own)))
            self._length += len(text)
        if text or not _text(self._pending).endswith(INCOMPLETE):
            self._pending = b""
        return place


def _text(found: bytes) -> str:
    return found.decode(errors="replace")
