"""Chunks of a stream that are ready together."""

from __future__ import annotations

from serving.gateway.requests.chunk_stream import merged
from triptych.messages import Chunk, ItemError, TokenLogprob, Usage


def test_chunks_that_are_ready_together_are_merged() -> None:
    entry = TokenLogprob(token="b", logprob=-1.0)
    chunks = [
        Chunk(index=0, text="a"),
        Chunk(index=1, text="x", logprobs=[entry]),
        Chunk(index=0, text="b"),
        Chunk(index=1, text="y", logprobs=[entry]),
        Chunk(index=0, finish_reason="stop", usage=Usage(prompt_tokens=1)),
    ]
    assert merged(chunks) == [
        Chunk(index=1, text="xy", logprobs=[entry, entry]),
        Chunk(index=0, text="ab", finish_reason="stop", usage=Usage(prompt_tokens=1)),
    ]
    assert merged([]) == []


def test_an_error_does_not_take_the_text_before_it() -> None:
    error = ItemError(type="deadline_exceeded", message="late")
    chunks = [Chunk(index=0, text="a"), Chunk(index=1, text="x"), Chunk(index=0, text="b")]
    found = merged([*chunks, Chunk(index=0, error=error), Chunk(index=1, text="y")])
    assert [(one.index, one.text, one.error) for one in found] == [
        (0, "ab", None),
        (0, "", error),
        (1, "xy", None),
    ]
