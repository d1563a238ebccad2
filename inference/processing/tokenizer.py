"""The interface of tokenizers, apart from their libraries, and places of tokens in texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from inference.errors import InvalidRequest
from inference.processing.detokenizer import INCOMPLETE, Detokenizer
from triptych.messages import TruncationDirection


@dataclass(frozen=True)
class Rows:
    """Rows of the tables that a tokenizer's ids are looked up in; it may have more tokens.

    Attributes:
        read: Of the table for texts; None: any id is taken.
        written: Of the table for outputs.
    """

    read: int | None = None
    written: int | None = None

    def check(self, ids: Sequence[int], name: Callable[[int], str | None]) -> None:
        """Refuses a text with a token that has no row.

        Args:
            name: The text of a token.

        Raises:
            InvalidRequest: names the first one.
        """
        if self.read is None or max(ids, default=0) < self.read:
            return
        token = next(number for number in ids if number >= self.read)
        raise InvalidRequest(
            f"{name(token)!r} is token {token}, and the model has embeddings of tokens 0 to "
            f"{self.read - 1} alone: leave it out"
        )

    def without(self, tokens: Iterable[tuple[str, int]]) -> list[str]:
        """Tokens of a vocabulary for texts that have no row, in the order of their ids."""
        found = [] if self.read is None else [each for each in tokens if each[1] >= self.read]
        return [text for text, _ in sorted(found, key=lambda each: each[1])]

    def writes(self, ids: Iterable[int]) -> bool:
        """Whether all tokens have a row of the table for outputs."""
        return self.written is None or all(number < self.written for number in ids)


class Tokenizer(Protocol):
    """Text to token ids and back. Implementations may be used from several threads at once."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, unpadded and untruncated, with the model's own end (and start) tokens.

        Raises:
            InvalidRequest: the model has no embedding of a token.
        """

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
        cut_characters: Characters of the texts that were cut off.
        words: The number of each token's word in its own text, as the tokenizer divides a text
            before it looks for tokens; empty unless offsets are requested and it does so.
    """

    ids: Sequence[int]
    segments: Sequence[int]
    sequences: Sequence[int | None]
    offsets: Sequence[tuple[int, int]] = ()
    cut_characters: int = 0
    words: Sequence[int | None] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, positions: Sequence[int]) -> EncodedText:
        """The tokens at these positions, in that order."""
        return EncodedText(
            [self.ids[i] for i in positions],
            [self.segments[i] for i in positions],
            [self.sequences[i] for i in positions],
            [self.offsets[i] for i in positions] if self.offsets else (),
            self.cut_characters,
            [self.words[i] for i in positions] if self.words else (),
        )

    def places(self, sequence: int) -> list[tuple[int, int]]:
        """The offsets of the tokens of the first text (0) or the second (1)."""
        each = zip(self.sequences, self.offsets, strict=True)
        return [offset for which, offset in each if which == sequence]

    def truncate(self, limit: int, end: TruncationDirection = "right") -> EncodedText:
        """At most `limit` tokens, cut at the ends of the texts, of a pair the longer one first.

        The lengths are those of the strategy `longest_first` of `tokenizers`, which `transformers`
        and cross-encoders truncate with. Special tokens stay.
        """
        counts = [sum(sequence == which for sequence in self.sequences) for which in (0, 1)]
        room = limit - (len(self) - sum(counts))
        if sum(counts) <= room:
            return self
        shorter = min(*counts, room // 2)
        longer = room - shorter
        keep = [shorter, longer] if counts[0] <= counts[1] else [longer, shorter]
        starts = [0, 0] if end == "right" else [counts[which] - keep[which] for which in (0, 1)]
        positions, seen = [], [0, 0]
        for position, sequence in enumerate(self.sequences):
            if sequence is not None:
                place = seen[sequence] - starts[sequence]
                seen[sequence] += 1
                if not 0 <= place < keep[sequence]:
                    continue
            positions.append(position)
        return self.at(positions)


class SpanTokenizer(Tokenizer, Protocol):
    """A tokenizer that also encodes pairs and returns where tokens lie in the text."""

    def encode_text(
        self, text: str, second: str | None = None, *, with_offsets: bool = False
    ) -> EncodedText:
        """A text, or a pair of texts, as the model reads them.

        Raises:
            InvalidRequest: as `encode`.
        """

    def starts(self, text: str) -> tuple[Sequence[int], Sequence[int]]:
        """The ids of a text, and where each begins in it, its own leading spaces included."""

    def continues(self, text: str, encoded: EncodedText) -> list[bool]:
        """Whether each token continues the word of the token before it.

        Args:
            text: The text that `encoded` is of, one text alone, encoded with offsets.
        """

    def token_id(self, text: str) -> int | None:
        """The one token that a text is: in the vocabulary by that name, or encoded; else None.

        Raises:
            InvalidRequest: as `encode`.
        """

    def render(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of ids."""


def cut_texts(
    tokenizer: SpanTokenizer, texts: Sequence[str], limit: int, end: TruncationDirection, most: int
) -> EncodedText | None:
    """A text or a pair, cut to at most `limit` tokens; see `EncodedText.truncate`.

    Args:
        end: Where texts are cut.
        most: Characters of each text that are tokenised, from the end that is kept.

    Returns:
        The tokens with their offsets in the whole texts; None where a text goes on behind `most`
        characters whose tokens all fit, so that it is not known which tokens follow.
    """
    read = [text[:most] if end == "right" else text[-most:] for text in texts]
    whole = tokenizer.encode_text(*read, with_offsets=True)
    kept = whole.truncate(limit, end)
    cut, unread = 0, [len(text) - len(part) for text, part in zip(texts, read, strict=True)]
    for which, part in enumerate(read):
        places = whole.places(which)
        count = len(places) - len(kept.places(which))
        if count and end == "right":
            cut += unread[which] + len(part) - places[-count][0]
        elif count:
            cut += unread[which] + places[count - 1][1]
        elif unread[which]:
            return None
    if end == "left" and any(unread):
        before = [0 if which is None else unread[which] for which in kept.sequences]
        each = zip(kept.offsets, before, strict=True)
        moved = [(start + more, stop + more) for (start, stop), more in each]
        kept = replace(kept, offsets=moved)
    return replace(kept, cut_characters=cut)


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
