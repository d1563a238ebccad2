"""What the generated methods of a client need: a way to send an operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

from pydantic import BaseModel

from triptych.messages import ModelList
from triptych.operation import LIST_MODELS, Operation

Response = TypeVar("Response", bound=BaseModel)


class BlockingClient(ABC):
    """A client whose methods wait for the response."""

    @abstractmethod
    def send(self, operation: Operation[Response]) -> Response:
        """The response of an operation.

        Raises:
            TriptychError: See `triptych.errors`.
        """

    @abstractmethod
    def stream(self, operation: Operation[Response]) -> Generator[Response, None, None]:
        """The chunks of a streaming operation; closing the generator aborts the request.

        Raises:
            TriptychError: See `triptych.errors`.
        """

    def models(self) -> ModelList:
        """The models served: tasks, languages, precision and limits.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(LIST_MODELS)


class AwaitableClient(ABC):
    """A client whose methods are coroutines and asynchronous generators."""

    @abstractmethod
    async def send(self, operation: Operation[Response]) -> Response:
        """The response of an operation.

        Raises:
            TriptychError: See `triptych.errors`.
        """

    @abstractmethod
    def stream(self, operation: Operation[Response]) -> AsyncGenerator[Response, None]:
        """The chunks of a streaming operation; closing the generator aborts the request.

        Raises:
            TriptychError: See `triptych.errors`.
        """

    async def models(self) -> ModelList:
        """The models served: tasks, languages, precision and limits.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return await self.send(LIST_MODELS)
