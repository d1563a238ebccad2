"""Incremental detokenisation: the concatenated pieces equal the text decoded at once.

Text that later tokens may change is held back: an incomplete character of byte-level BPE, a space
that the clean-up may remove, trailing spaces. The cost is linear in the length, but for words
whose spaces depend on all before them (`GrowingDetokenizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Filter(Protocol):
    """An incremental change of text."""

    def add(self, text: str) -> str:
        """The output that further text cannot change."""

    def finish(self) -> str:
        """The rest of the output."""


class Detokenizer:
    """One sequence's text. Decodes a window: the tokens of the last piece, and the new ones.

    The tokens of the last piece are decoded again because decoders drop the space of a first token;
    their own text is cut off.

    Args:
        decode: Text of ids. It may treat the first token differently, and may end in U+FFFD where a
            character is incomplete; otherwise the text of more ids must extend that of fewer.
        filters: Applied to the text, in this order.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], filters: Sequence[Filter] = ()
    ) -> None:
        self._decode = decode
        self._filters = tuple(filters)
        self._window: list[int] = []
        self._known = 0  # tokens of the window whose text has been returned

    def add(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain; often empty."""
        text = self._decode([*self._window, *ids])
        if len(ids) > 1 and text.endswith(INCOMPLETE):
            # Complete characters are returned before the incomplete one.
            return "".join(self.add([number]) for number in ids)
        self._window += ids
        known = self._decode(self._window[: self._known])
        if len(text) <= len(known) or text.endswith(INCOMPLETE):
            return ""
        self._window = self._window[self._known :]
        self._known = len(self._window)
        return self._filter(text[len(known) :])

    def finish(self) -> str:
        """The text that was held back; nothing may be added afterwards."""
        text = self._filter(self._held())
        for place, filter_ in enumerate(self._filters):
            rest = filter_.finish()
            for later in self._filters[place + 1 :]:
                rest = later.add(rest)
            text += rest
        return text

    def _held(self) -> str:
        """The text behind what was returned."""
        known = self._decode(self._window[: self._known])
        return self._decode(self._window)[len(known) :]

    def _filter(self, text: str) -> str:
        for filter_ in self._filters:
            text = filter_.add(text)
        return text


class GrowingDetokenizer(Detokenizer):
    """The same where a word's space depends on all tokens before it, which are decoded again.

    Args:
        certain: Ids → the beginning of their text that further ids cannot change.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        certain: Callable[[Sequence[int]], str],
        filters: Sequence[Filter] = (),
    ) -> None:
        super().__init__(decode, filters)
        self._certain = certain
        self._length = 0  # of the text that has been returned

    def add(self, ids: Sequence[int]) -> str:
        """The text that these ids make certain; often empty."""
        self._window += ids
        new = self._certain(self._window)[self._length :]
        self._length += len(new)
        return self._filter(new)

    def _held(self) -> str:
        return self._decode(self._window)[self._length :]


class Replacement:
    """`str.replace`, from left to right."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def add(self, text: str) -> str:
        """All but an end that may begin the replaced string."""
        *parts, rest = (self._held + text).split(self._old)
        settled = self._new.join([*parts, ""]) if parts else ""
        begun = next(
            (size for size in range(len(self._old) - 1, 0, -1) if rest.endswith(self._old[:size])),
            0,
        )
        self._held = rest[len(rest) - begun :]
        return settled + rest[: len(rest) - begun]

    def finish(self) -> str:
        """The text that was held back."""
        held, self._held = self._held, ""
        return held


class Stripping:
    """`str.strip`."""

    def __init__(self) -> None:
        self._has_begun = False
        self._held = ""

    def add(self, text: str) -> str:
        """All but leading spaces, and trailing ones so far."""
        text = self._held + text
        if not self._has_begun:
            text = text.lstrip()
            self._has_begun = bool(text)
        settled = text.rstrip()
        self._held = text[len(settled) :]
        return settled

    def finish(self) -> str:
        """Nothing: trailing spaces are dropped."""
        self._held = ""
        return ""


class LeadingSpace:
    """`str.removeprefix(" ")`."""

    def __init__(self) -> None:
        self._has_begun = False

    def add(self, text: str) -> str:
        """All but a leading space."""
        if self._has_begun or not text:
            return text
        self._has_begun = True
        return text.removeprefix(" ")

    def finish(self) -> str:
        return ""
