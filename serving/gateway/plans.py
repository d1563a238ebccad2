"""What tasks prepare and what becomes of it: the shapes that the service works with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from serving.tasks.call import Call, GenerateCall, Outcome
from serving.tasks.stream import Streaming

T = TypeVar("T")
Response_co = TypeVar("Response_co", covariant=True)


class Plan(Protocol[Response_co]):
    """What every task prepares."""

    @property
    def calls(self) -> Sequence[Call]:
        """What to ask of models."""
        ...

    def finish(self, outcomes: Sequence[Outcome]) -> Response_co:
        """The response, given one outcome for each call."""
        ...


class StreamPlan(Protocol):
    """What tasks prepare that can be told piece by piece."""

    @property
    def calls(self) -> Sequence[GenerateCall]:
        """What to ask of models."""
        ...

    def streaming(self) -> Streaming:
        """What becomes of the calls' tokens."""
        ...


@dataclass(frozen=True)
class Timings:
    """Where a request's time went, so that a slow one names its own cause."""

    tokenization_s: float
    queue_s: float
    """The longest wait of one of its calls."""
    inference_s: float
    """From the first call's turn to the last outcome; of a stream, to the first piece."""

    @property
    def headers(self) -> dict[str, str]:
        """The same as HTTP headers, in milliseconds."""
        return {
            "x-tokenization-time": f"{self.tokenization_s * 1000:.1f}",
            "x-queue-time": f"{self.queue_s * 1000:.1f}",
            "x-inference-time": f"{self.inference_s * 1000:.1f}",
        }


@dataclass(frozen=True)
class Answer(Generic[T]):
    """A response and its timings."""

    response: T
    timings: Timings
