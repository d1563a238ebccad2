"""The interface of tokenizers, apart from their libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.processing.detokenizer import Detokenizer


class Tokenizer(Protocol):
    """Text to token ids and back. Implementations may be used from several threads at once."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, unpadded and untruncated, with the model's own end (and start) tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids; special tokens are left out."""
        ...

    def detokenizer(self) -> Detokenizer:
        """An incremental `decode`: the concatenated pieces equal `decode` of all ids."""
        ...

    def pieces(self, ids: Sequence[int], *, of_source: bool = False) -> list[str]:
        """The text of each token by itself; special tokens by name, leading spaces kept.

        Args:
            of_source: The ids are an encoder's; they may have a vocabulary of their own.
        """
        ...
