"""The streams of a request's calls as the pieces that its user reads; pure, no I/O.

An item may be made of several calls (a paragraph of its sentences): their texts come in order, each
as it is generated once those before it are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.errors import InvalidRequest, TriptychError
from serving.generation import FinishReason
from serving.tasks.batch import item_error
from serving.tasks.call import GenerateCall, Generated
from serving.tasks.tokens import LiveText, Tokens
from triptych.messages import Chunk, TokenLogprob, Usage

Show = Callable[[Tokens], list[TokenLogprob] | None]
"""What is told of tokens beside their text."""


@dataclass(frozen=True)
class Part:
    """One call's share of an item, and what stands before it."""

    call: int
    read: Callable[[], LiveText]
    before: str = ""


@dataclass(frozen=True)
class StreamedItem:
    """One item: its parts in order, and what stands after them."""

    parts: tuple[Part, ...]
    after: str = ""


class Streaming:
    """One request's items while their calls run.

    Args:
        items: In the order asked; an error stands in the place of an item that has no calls.
        calls: Of all items.
        show: What is told of tokens beside their text.
    """

    def __init__(
        self,
        items: Sequence[StreamedItem | TriptychError],
        calls: Sequence[GenerateCall],
        show: Show = lambda tokens: None,
    ) -> None:
        self._calls = calls
        self._show = show
        self._live = {
            index: _LiveItem(index, item)
            for index, item in enumerate(items)
            if not isinstance(item, TriptychError)
        }
        self._places = {
            part.call: (item, place)
            for item in self._live.values()
            for place, part in enumerate(item.parts)
        }
        self._bad = [
            Chunk(index=index, error=item_error(item))
            for index, item in enumerate(items)
            if isinstance(item, TriptychError)
        ]
        self._unfinished = len(self._live)
        self._has_begun = False
        self._has_success = False
        self._usage = Usage()
        self.failure: TriptychError | None = None
        """Why there is no answer at all; nothing follows it."""

    def wants(self, call: int) -> bool:
        """Whether more of that call is of use."""
        item, place = self._places[call]
        return not (item.is_failed or item.texts[place].is_stopped)

    def add(self, call: int, tokens: Tokens) -> list[Chunk]:
        """What tokens that have just arrived let us tell."""
        item, place = self._places[call]
        if not self.wants(call):
            return []
        live = item.texts[place]
        before = live.length
        text = item.tell(place, live.add(tokens))
        shown = self._show(tokens[: live.length - before])
        if not (text or shown):
            return []
        return self._told(Chunk(index=item.index, text=text, logprobs=shown))

    def end(self, call: int, generated: Generated | None = None) -> list[Chunk]:
        """The end of a call, by itself or, without what it generated, by a stop string."""
        item, place = self._places[call]
        if item.is_failed:
            return []
        live = item.texts[place]
        rest = live.finish()
        is_own = generated is not None and generated.finish_reasons and not live.is_stopped
        reason = generated.finish_reasons[0] if generated and is_own else FinishReason.STOP
        self._count(self._calls[call].prompt_tokens, live.length)
        text = item.tell(place, rest, reason)
        if not item.is_complete:
            return self._told(Chunk(index=item.index, text=text)) if text else []
        self._has_success = True
        return self._last(Chunk(index=item.index, text=text, finish_reason=item.reason))

    def fail(self, call: int, error: TriptychError) -> list[Chunk]:
        """The end of a call without an answer: its item has none, the others go on.

        Told with the next piece while nothing else has been told: when no item is left and none has
        an answer, the error is the request's `failure`.
        """
        item, _ = self._places[call]
        if item.is_failed:
            return []
        item.is_failed = True
        if self._unfinished == 1 and not self._has_success:
            self._unfinished = 0
            self.failure = error
            return []
        piece = Chunk(index=item.index, error=item_error(error))
        if not self._has_begun:
            self._unfinished -= 1
            self._bad.append(piece)
            return []
        return self._last(piece)

    def _count(self, prompt_tokens: int, completion_tokens: int) -> None:
        self._usage = Usage(
            prompt_tokens=self._usage.prompt_tokens + prompt_tokens,
            completion_tokens=self._usage.completion_tokens + completion_tokens,
        )

    def _last(self, piece: Chunk) -> list[Chunk]:
        """An item's last piece; the stream's last one has the usage."""
        self._unfinished -= 1
        if not self._unfinished:
            piece = piece.model_copy(update={"usage": self._usage})
        return self._told(piece)

    def _told(self, piece: Chunk) -> list[Chunk]:
        """A piece; before the first, the items that were bad until then."""
        self._has_begun = True
        bad, self._bad = self._bad, []
        return [*bad, piece]


class _LiveItem:
    """One item while its calls run."""

    def __init__(self, index: int, item: StreamedItem) -> None:
        self.index = index
        self.parts = item.parts
        self.texts = [part.read() for part in item.parts]
        self.is_failed = False
        self._held = [part.before for part in item.parts]
        self._reasons: list[str | None] = [None for _ in item.parts]
        self._after = item.after
        self._turn = 0

    @property
    def is_complete(self) -> bool:
        """Whether every part has come to its end."""
        return self._turn == len(self.parts)

    @property
    def reason(self) -> str:
        """`length` where any part was cut short."""
        return next(
            (reason for reason in self._reasons if reason and reason != FinishReason.STOP),
            FinishReason.STOP,
        )

    def tell(self, place: int, text: str, reason: str | None = None) -> str:
        """The item's text that comes next, given more of one part (and, with a reason, its end)."""
        self._held[place] += text
        self._reasons[place] = reason
        told = ""
        while not self.is_complete:
            told += self._held[self._turn]
            self._held[self._turn] = ""
            if self._reasons[self._turn] is None:
                return told
            self._turn += 1
        return told + self._after


def check_stream(stream: bool | None, **fields: object) -> None:
    """Raises InvalidRequest where a stream is asked for together with what pieces cannot carry."""
    for name, value in fields.items():
        if stream and value:
            raise InvalidRequest(f"a stream does not carry {name}: leave one out", field=name)


def merged(pieces: Sequence[Chunk]) -> list[Chunk]:
    """Pieces that are ready together, one an item where that changes nothing but their number."""
    last: dict[int, Chunk] = {}
    for piece in pieces:
        before = last.pop(piece.index, None)
        last[piece.index] = piece if before is None else _joined(before, piece)
    return list(last.values())


def _joined(first: Chunk, second: Chunk) -> Chunk:
    logprobs = [*(first.logprobs or ()), *(second.logprobs or ())]
    return second.model_copy(
        update={"text": first.text + second.text, "logprobs": logprobs or None}
    )
