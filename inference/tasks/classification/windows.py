"""Texts longer than a model takes, as windows that overlap."""

from __future__ import annotations

from inference.errors import InvalidRequest
from inference.processing.tokenizer import EncodedText

MAX_TOKENS = 65_536
"""Of all windows of a text: with a stride close to their length, there is one for each token."""


def windows(text: EncodedText, limit: int, stride: int, field: str) -> list[list[int]]:
    """Positions of the tokens of each window: as many as fit between the special tokens.

    As tokenizers of `transformers` do with `return_overflowing_tokens`: every window has the
    special tokens of the whole text, and begins `stride` tokens before the end of the last one.

    Args:
        text: One text, of any length.
        limit: Tokens of a window, special tokens included.
        stride: Tokens that two windows share.
        field: The request's field that holds the stride.

    Raises:
        InvalidRequest: windows would not advance, or there would be too many.
    """
    content = [i for i, sequence in enumerate(text.sequences) if sequence is not None]
    room = limit - (len(text) - len(content))
    if len(content) <= room:
        return [list(range(len(text)))]
    if stride >= room:
        raise InvalidRequest(
            f"{field} is {stride}, a window has {room} tokens of the text: give at most {room - 1}",
            field=field,
        )
    first, last = content[0], content[-1]
    before, after = range(first), range(last + 1, len(text))
    starts = range(0, len(content) - stride, room - stride)
    if len(starts) > (most := MAX_TOKENS // limit):
        raise InvalidRequest(
            f"{field} is {stride}, which makes {len(starts)} windows of {limit} tokens, at most "
            f"{most}: give less",
            field=field,
        )
    return [[*before, *content[start : start + room], *after] for start in starts]
