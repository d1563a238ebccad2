"""Streams of a request's calls as chunks of its response.

An item may have several segments (the sentences of a paragraph): their texts are sent in order,
each as it is generated once those before it are complete. A segment whose text depends on the whole
results of its calls is sent when they have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from inference.errors import ServingError
from inference.generation import Finished, FinishReason, TokenChunk
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.model_calls import (
    GenerateCall,
    Outcome,
    Outcomes,
    item_error,
    map_valid,
)
from triptych.messages import Chunk, TokenLogprob, Usage

RenderLogprobs = Callable[[TokenChunk], list[TokenLogprob] | None]
"""Log-probabilities of one sequence's next tokens as chunks carry them, None if not requested."""


def no_logprobs(tokens: TokenChunk) -> None:
    """The log-probabilities of tokens where they are not requested."""


@dataclass(frozen=True)
class Segment:
    """One call's share of an item, and the text before it."""

    call: int
    read: Callable[[], IncrementalText]
    before: str = ""


@dataclass(frozen=True)
class WholeSegment:
    """Calls whose text is certain when all of them have ended, and the text before it.

    Attributes:
        calls: Their numbers.
        result: The text and its finish reason, given the outcomes of these calls.
        before: The text before it.
    """

    calls: tuple[int, ...]
    result: Callable[[Outcomes], tuple[str, str]]
    before: str = ""


AnySegment: TypeAlias = Segment | WholeSegment


@dataclass(frozen=True)
class StreamedItem:
    """One item: its segments in order, and the text after them."""

    segments: tuple[AnySegment, ...]
    after: str = ""


def one_call_each(
    numbers: Sequence[int | ServingError], read: Callable[[], IncrementalText]
) -> tuple[StreamedItem | ServingError, ...]:
    """Items of one call each, given their numbers; errors stand for items without."""
    return map_valid(numbers, lambda number: StreamedItem((Segment(number, read),)))


class Streaming:
    """One request's items while their calls run.

    Args:
        items: In the request's order; an error for an item without calls.
        calls: Of all items; those whose tokens or outcomes the stream takes.
        rendering: Makes what renders the log-probabilities of a call's tokens.
        is_greedy: The stream takes the place of a beam search that is the model's default.
    """

    def __init__(
        self,
        items: Sequence[StreamedItem | ServingError],
        calls: Sequence[GenerateCall],
        rendering: Callable[[], RenderLogprobs] = lambda: no_logprobs,
        *,
        is_greedy: bool = False,
    ) -> None:
        self.calls = list(calls)
        self._is_greedy = is_greedy or None
        self._render_logprobs = [rendering() for _ in self.calls]
        self._live = {
            index: _LiveItem(index, item)
            for index, item in enumerate(items)
            if not isinstance(item, ServingError)
        }
        self._position = {
            call: (item, position)
            for item in self._live.values()
            for position, segment in enumerate(item.segments)
            for call in _calls(segment)
        }
        self._held: dict[int, tuple[str, list[TokenLogprob] | None]] = {}
        """Text and log-probabilities of the last tokens of calls, which their ends bring."""
        self._outcomes: dict[int, Outcome] = {}
        self._bad = [
            Chunk(index=index, error=item_error(item))
            for index, item in enumerate(items)
            if isinstance(item, ServingError)
        ]
        self._unfinished = len(self._live)
        self._has_begun = False
        self._has_success = False
        self._usage = Usage()
        self.failure: ServingError | None = None
        """Error of the request as a whole; no chunk follows it."""

    def is_whole(self, call: int) -> bool:
        """Whether that call is used by its outcome (`settle`), not token by token."""
        item, position = self._position[call]
        return isinstance(item.segments[position], WholeSegment)

    def needs(self, call: int) -> bool:
        """Whether further tokens of that call, or its outcome, are used."""
        item, position = self._position[call]
        live = item.texts[position]
        return not (item.is_failed or (live is not None and live.is_stopped))

    def adopt(self, call: int, other: Streaming) -> bool:
        """Take a segment from the stream of another plan of the same request.

        Returns:
            Whether it was taken: the plans have the same segments, and nothing of this one is
            there yet. Its calls are the other plan's then, and begin anew.
        """
        item, position = self._position[call]
        theirs = other._position.get(call)
        if theirs is None:
            return False
        live, segment = theirs[0], theirs[0].segments[theirs[1]]
        places = item.index, position, len(item.segments), _calls(item.segments[position])
        if places != (live.index, theirs[1], len(live.segments), _calls(segment)):
            return False
        text = item.texts[position]
        if (text and text.length) or any(one in self._outcomes for one in _calls(segment)):
            return False
        item.replace(position, segment)
        for one in _calls(segment):
            self.calls[one] = other.calls[one]
            self._render_logprobs[one] = other._render_logprobs[one]
        return True

    def add(self, call: int, tokens: TokenChunk) -> list[Chunk]:
        """The chunks that newly arrived tokens make certain.

        The last ones of a call are part of the chunk of its end, which has the reason of it.
        """
        item, position = self._position[call]
        if not self.needs(call):
            return []
        live = item.texts[position]
        assert live is not None
        before = live.length
        text = live.add(tokens)
        logprobs = self._render_logprobs[call](tokens[: live.length - before])
        if tokens.is_last or live.is_stopped:
            self._held[call] = text, logprobs
            return []
        text = item.add(position, text)
        if not (text or logprobs):
            return []
        return self._send(Chunk(index=item.index, text=text, logprobs=logprobs))

    def end(self, call: int, finished: Finished | None = None) -> list[Chunk]:
        """The end of a call; without its result, by a stop string."""
        item, position = self._position[call]
        if item.is_failed:
            return []
        live = item.texts[position]
        assert live is not None
        text, logprobs = self._held.pop(call, ("", None))
        text += live.finish()
        is_own = finished is not None and not live.is_stopped
        reason = finished.best.finish_reason if finished and is_own else FinishReason.STOP
        self._count(self.calls[call].prompt_tokens, live.length)
        return self._end(item, position, text, reason, logprobs)

    def settle(self, call: int, outcome: Outcome) -> list[Chunk]:
        """The outcome of a call of a `WholeSegment`; the last of its calls makes its text."""
        item, position = self._position[call]
        segment = item.segments[position]
        assert isinstance(segment, WholeSegment)
        self._outcomes[call] = outcome
        if isinstance(outcome, Finished):
            self._count(outcome.prompt_tokens, outcome.generated_tokens)
        if item.is_failed or not all(one in self._outcomes for one in segment.calls):
            return []
        try:
            text, reason = segment.result(self._outcomes)
        except ServingError as error:
            return self._fail(item, error)
        return self._end(item, position, text, reason)

    def _end(
        self,
        item: _LiveItem,
        position: int,
        text: str,
        reason: str,
        logprobs: list[TokenLogprob] | None = None,
    ) -> list[Chunk]:
        """The end of a segment, and the last of its text."""
        text = item.add(position, text, reason)
        if not item.is_complete:
            if not (text or logprobs):
                return []
            return self._send(Chunk(index=item.index, text=text, logprobs=logprobs))
        self._has_success = True
        last = Chunk(
            index=item.index,
            text=text,
            logprobs=logprobs,
            finish_reason=item.reason,
            is_greedy=self._is_greedy,
        )
        return self._last(last)

    def fail(self, call: int, error: ServingError) -> list[Chunk]:
        """The end of a call without a result: its item fails, the others go on.

        A `WholeSegment` may do without one of its calls.
        """
        if self.is_whole(call):
            return self.settle(call, error)
        return self._fail(self._position[call][0], error)

    def _fail(self, item: _LiveItem, error: ServingError) -> list[Chunk]:
        """The end of an item.

        Until something else is sent, the error is held back: when no item is left and none has
        succeeded, it is the request's `failure`.
        """
        if item.is_failed:
            return []
        item.is_failed = True
        if self._unfinished == 1 and not self._has_success:
            self._unfinished = 0
            self.failure = error
            return []
        chunk = Chunk(index=item.index, error=item_error(error))
        if not self._has_begun:
            self._unfinished -= 1
            self._bad.append(chunk)
            return []
        return self._last(chunk)

    def _count(self, prompt_tokens: int, completion_tokens: int) -> None:
        self._usage = Usage(
            prompt_tokens=self._usage.prompt_tokens + prompt_tokens,
            completion_tokens=self._usage.completion_tokens + completion_tokens,
        )

    def _last(self, chunk: Chunk) -> list[Chunk]:
        """An item's last chunk; the stream's last one has the usage."""
        self._unfinished -= 1
        if not self._unfinished:
            chunk = chunk.model_copy(update={"usage": self._usage})
        return self._send(chunk)

    def _send(self, chunk: Chunk) -> list[Chunk]:
        """A chunk; before the first, the items that had failed until then."""
        self._has_begun = True
        bad, self._bad = self._bad, []
        return [*bad, chunk]


class _LiveItem:
    """One item while its calls run."""

    def __init__(self, index: int, item: StreamedItem) -> None:
        self.index = index
        self.segments = list(item.segments)
        self.texts = [_reader(one) for one in item.segments]
        self.is_failed = False
        self._held = [segment.before for segment in item.segments]
        self._reasons: list[str | None] = [None for _ in item.segments]
        self._after = item.after
        self._current = 0

    @property
    def is_complete(self) -> bool:
        """Whether every segment has ended."""
        return self._current == len(self.segments)

    @property
    def reason(self) -> str:
        """`length` where any segment was cut short."""
        return FinishReason.of_all(reason for reason in self._reasons if reason)

    def replace(self, position: int, segment: AnySegment) -> None:
        """Have another segment of which nothing is there yet; the text before it stays."""
        self.segments[position] = segment
        self.texts[position] = _reader(segment)

    def add(self, position: int, text: str, reason: str | None = None) -> str:
        """The item's next text, given more of one segment and, at its end, the reason."""
        self._held[position] += text
        self._reasons[position] = reason
        ready = ""
        while not self.is_complete:
            ready += self._held[self._current]
            self._held[self._current] = ""
            if self._reasons[self._current] is None:
                return ready
            self._current += 1
        return ready + self._after


def _reader(segment: AnySegment) -> IncrementalText | None:
    return segment.read() if isinstance(segment, Segment) else None


def _calls(segment: AnySegment) -> tuple[int, ...]:
    return segment.calls if isinstance(segment, WholeSegment) else (segment.call,)
