"""The interface of tokenizers, apart from their libraries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inference.processing.detokenizer import Detokenizer


class Tokenizer(Protocol):
    """Text to token ids and back. Implementations may be used from several threads at once."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, unpadded and untruncated, with the model's own end (and start) tokens."""

    def encode_output(self, text: str) -> list[int] | None:
        """Ids of a text that the model writes, without special tokens; None if it lacks some."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids; special tokens are left out."""

    def detokenizer(self) -> Detokenizer:
        """An incremental `decode`: the concatenated pieces equal `decode` of all ids."""

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        """The text of each token by itself; special tokens by name, leading spaces kept.

        Args:
            of_source: The ids are an encoder's; they may have a vocabulary of their own.
        """

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        """What each token adds to a text, in UTF-8: a part of a character may be a token.

        Empty for special tokens, which texts leave out.
        """


class ByteTokenizer(Tokenizer, Protocol):
    """A tokenizer whose tokens are parts of the text."""

    def token_bytes(self, count: int) -> list[bytes | None] | None:
        """The bytes of the first `count` tokens, spaces kept; None for special tokens.

        None where a text is not its tokens one after the other.
        """


@dataclass(frozen=True, eq=False)
class EncodedText:
    """The tokens of a text or of a pair of texts, with the model's special tokens around them.

    Attributes:
        ids: Token ids.
        segments: Each token's segment (`token_type_ids`).
        sequences: 0 for a token of the first text, 1 of the second, None for a special token that
            the tokenizer adds; one that is written out in a text belongs to that text.
        offsets: (start, end) of each token in its own text, as indices of a Python string; empty
            unless requested.
    """

    ids: Sequence[int]
    segments: Sequence[int]
    sequences: Sequence[int | None]
    offsets: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, positions: Sequence[int]) -> EncodedText:
        """The tokens at these positions, in that order."""
        return EncodedText(
            [self.ids[i] for i in positions],
            [self.segments[i] for i in positions],
            [self.sequences[i] for i in positions],
            [self.offsets[i] for i in positions] if self.offsets else (),
        )


class SpanTokenizer(Tokenizer, Protocol):
    """A tokenizer that also encodes pairs and returns where tokens lie in the text."""

    def encode_text(
        self, text: str, second: str | None = None, *, with_offsets: bool = False
    ) -> EncodedText:
        """A text, or a pair of texts, as the model reads them."""

    def starts(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        """The ids of a text, and where each begins in it, its own leading spaces included."""

    def continues(self, text: str, encoded: EncodedText) -> list[bool]:
        """Whether each token continues the word of the token before it.

        Args:
            text: The text that `encoded` is of, one text alone, encoded with offsets.
        """

    def token_id(self, text: str) -> int | None:
        """The one token that a text is: in the vocabulary by that name, or encoded; else None."""

    def render(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ids."""
