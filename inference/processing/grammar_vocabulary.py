"""A model's vocabulary as llguidance reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from inference.bundle.manifest import Bundle
from inference.errors import InvalidRequest


class GrammarVocabulary:
    """What llguidance reads of a vocabulary that is not of bytes.

    Args:
        tokens: Bytes of each token; None for special tokens.
        end: An end token.
    """

    def __init__(self, tokens: Sequence[bytes | None], end: int) -> None:
        self.tokens = [token or b"" for token in tokens]
        self.special_token_ids = [number for number, token in enumerate(tokens) if token is None]
        self.eos_token_id = end
        self.bos_token_id = None
        self._ids = {token: number for number, token in enumerate(self.tokens) if token}
        self._longest = max(map(len, self._ids), default=0)

    def writes(self, text: bytes) -> bool:
        """Whether tokens can begin a text; bytes that follow it may be part of its last token."""
        places = range(1, min(self._longest, len(text)) + 1)
        if any(text[:place] in self._ids for place in places):
            return True
        return any(token.startswith(text) for token in self._ids)

    def check(self, text: bytes, field: str) -> None:
        """Raises InvalidRequest where the tokens cannot write a text."""
        written = b"".join(self.tokens[number] for number in self(text))
        if written != text:
            shown = text.decode(errors="replace")[:40]
            raise InvalidRequest(
                f"{field}: the model's vocabulary cannot write {shown!r}", field=field
            )

    def __call__(self, text: bytes) -> list[int]:
        """Ids of exactly these bytes, the longest token first; bytes without a token are skipped.

        The tokenizer's own would put a space in front.
        """
        ids, place = [], 0
        while place < len(text):
            for length in range(min(self._longest, len(text) - place), 0, -1):
                number = self._ids.get(text[place : place + length])
                if number is not None:
                    ids.append(number)
                    place += length - 1
                    break
            place += 1
        return ids


def library_tokenizer(bundle: Bundle, vocabulary: GrammarVocabulary, ends: list[int]) -> Any:
    """Llguidance's tokenizer, by its own reader for vocabularies of bytes.

    That refuses a file with more tokens than the model scores.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    spec = bundle.manifest.tokenizer
    assert spec is not None
    if "tokenizer" in spec.files:
        text = (bundle.folder / spec.files["tokenizer"]).read_text(encoding="utf-8")
        is_of_bytes = (json.loads(text).get("decoder") or {}).get("type") == "ByteLevel"
        last = max(Tokenizer.from_str(text).get_vocab().values(), default=0)
        if is_of_bytes and last < len(vocabulary.tokens):
            return LLTokenizer(text, n_vocab=len(vocabulary.tokens), eos_token=ends)
    wrapper = TokenizerWrapper(vocabulary)
    return LLTokenizer(wrapper, n_vocab=len(vocabulary.tokens), eos_token=ends)
