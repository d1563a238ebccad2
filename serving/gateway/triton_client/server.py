"""One of the servers of a gateway, as its pool uses it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from enum import Enum, auto
from typing import Protocol

from inference.generation import Finished, TokenChunk
from inference.tasks.shared.model_calls import GenerateCall, InferCall, Outputs

GONE = "gone"
"""The incarnation of a model that a server does not have."""


class Liveness(Enum):
    """What a server's health endpoint returned."""

    LIVE = auto()
    STOPPING = auto()
    """It finishes what it has accepted and refuses new calls."""
    UNREACHABLE = auto()


class Server(Protocol):
    """A server that runs models. A cancelled coroutine ends the work that it waits for."""

    async def generate(self, call: GenerateCall, timeout_s: float) -> Finished:
        """One sequence's hypotheses.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        ...

    def stream(
        self, call: GenerateCall, timeout_s: float
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        """One sequence's tokens as they are generated; the last item is the whole result.

        Closing the iterator ends the work.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        ...

    async def infer(self, call: InferCall, timeout_s: float) -> Outputs:
        """One batch's outputs.

        Raises:
            ServingError: the model refused the call, or did not respond.
        """
        ...

    async def is_ready(self, model: str, version: int) -> bool:
        """Whether that version is loaded."""
        ...

    async def served_version(self, model: str) -> int | None:
        """The version that new requests go to; None if none is loaded, or if that is unknown."""
        ...

    async def incarnation(self, model: str) -> str | None:
        """How often the model was healed, GONE if it is not loaded; None if that is unknown."""
        ...

    async def liveness(self) -> Liveness:
        """Whether the server responds."""
        ...

    def end_calls(self) -> None:
        """End all calls as lost: the server does not respond any more."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
