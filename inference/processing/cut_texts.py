"""Texts that are cut at the tokens that a model takes, and how much of them was cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference.processing.tokenizer import EncodedText, SpanTokenizer
from triptych.parameters import TruncationDirection


def cut_texts(
    tokenizer: SpanTokenizer,
    texts: Sequence[str],
    limit: int,
    end: TruncationDirection,
    most: int,
) -> EncodedText | None:
    """A text or a pair, cut to at most `limit` tokens; see `EncodedText.truncated`.

    Args:
        end: Where texts are cut.
        most: Characters of each text that are tokenised, from the end that is kept.

    Returns:
        The tokens with their offsets in the whole texts; None where a text goes on behind `most`
        characters whose tokens all fit, so that it is not known which tokens follow.
    """
    read = [text[:most] if end == "right" else text[-most:] for text in texts]
    whole = tokenizer.encode_text(*read, with_offsets=True)
    kept = whole.truncated(limit, end)
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
