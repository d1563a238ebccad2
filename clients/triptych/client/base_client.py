"""What all clients share: generated methods' way to send an operation, and retries."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from functools import wraps
from types import FunctionType, TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from pydantic import BaseModel

from triptych.errors import ConnectionFailed, Overloaded, TriptychError, Unavailable
from triptych.glossaries.messages import Glossary, GlossaryInfo, GlossaryList
from triptych.messages import Chunk, ModelList
from triptych.operation import (
    LIST_GLOSSARIES,
    LIST_MODELS,
    Operation,
    delete_glossary,
    get_glossary,
    put_glossary,
)

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_JITTER = random.SystemRandom()
"""A generator of its own: `random.seed` of a program does not repeat the waits in every process,
and waits do not change the numbers that it draws."""


@dataclass(frozen=True)
class Retries:
    """How often a request is sent that may succeed later, and how long to wait in between.

    Only broken connections, 429 and 503 are retried. The server's `Retry-After` is respected;
    without one the wait doubles each time, with jitter, so that clients refused together do not
    retry together. A `Retry-After` above `longest_wait_s` ends the retries.
    """

    attempts: int = 3
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; at least 1 is needed")

    def wait_s(self, failed: int, error: TriptychError) -> float | None:
        """Seconds until the next attempt; None to give up.

        Args:
            failed: Number of failed attempts so far.
            error: Error of the last one.
        """
        if failed >= self.attempts:
            return None
        if not isinstance(error, ConnectionFailed | Overloaded | Unavailable):
            return None
        requested = None if isinstance(error, ConnectionFailed) else error.retry_after_s
        if requested is not None:
            return requested if requested <= self.longest_wait_s else None
        longest = min(self.first_wait_s * 2 ** (failed - 1), self.longest_wait_s)
        return _JITTER.uniform(longest / 2, longest)

    def run(self, attempt: Callable[[], _Result]) -> _Result:
        """The result of `attempt`, called again after errors that may pass.

        Raises:
            TriptychError: The error of the last attempt.
        """
        failed = 0
        while True:
            try:
                return attempt()
            except TriptychError as error:
                failed += 1
                wait_s = self.wait_s(failed, error)
                if wait_s is None:
                    raise
            time.sleep(wait_s)

    async def run_async(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """See `run`.

        Raises:
            TriptychError: The error of the last attempt.
        """
        failed = 0
        while True:
            try:
                return await attempt()
            except TriptychError as error:
                failed += 1
                wait_s = self.wait_s(failed, error)
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)


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
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """

    @abstractmethod
    def health(self) -> bool:
        """Whether the gateway's process answers; without retries.

        Raises:
            TriptychError: Gateway unreachable, or not a Triptych gateway.
        """

    @abstractmethod
    def ready(self) -> bool:
        """Whether every required model answers and the gateway is not draining; without retries.

        Raises:
            TriptychError: Gateway unreachable, or not a Triptych gateway.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def models(self) -> ModelList:
        """The models served: tasks, languages, precision and limits.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(LIST_MODELS)

    def put_glossary(
        self,
        name: str,
        terms: Mapping[str, str],
        *,
        source: str | None = None,
        target: str | None = None,
    ) -> GlossaryInfo:
        """Store a glossary, or replace the one of that name.

        Args:
            name: Letters, digits, dots, dashes and underscores; `translate` takes it as
                `glossary_name`.
            terms: Term of the source to its rendering in the translation.
            source: Language of the terms; that of requests which name none.
            target: Language of the renderings; that of requests which name none.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(put_glossary(name, terms, source, target))

    def glossary(self, name: str) -> Glossary:
        """A stored glossary with its terms.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(get_glossary(name))

    def glossaries(self) -> GlossaryList:
        """The stored glossaries of this key, without their terms.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(LIST_GLOSSARIES)

    def delete_glossary(self, name: str) -> GlossaryInfo:
        """Delete a stored glossary; what it was.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(delete_glossary(name))


def awaiting(
    method: Callable[Concatenate[Any, _Parameters], _Result],
) -> Callable[Concatenate[AwaitableClient, _Parameters], Coroutine[Any, Any, _Result]]:
    """The coroutine of an awaitable client, with the parameters and docstring of a blocking one's.

    `method` ends in `self.send`, whose result is a coroutine where `self` is awaitable.
    """

    @wraps(method)
    async def awaited(*args: Any, **fields: Any) -> _Result:
        result: _Result = await cast(Any, method)(*args, **fields)
        return result

    return awaited


def streaming(
    method: Callable[Concatenate[Any, _Parameters], Generator[_Result, None, None]],
) -> Callable[Concatenate[AwaitableClient, _Parameters], AsyncGenerator[_Result, None]]:
    """As `awaiting`, for a method that ends in `self.stream`: a copy with another return type."""
    given = cast(FunctionType, method)
    copy = FunctionType(given.__code__, given.__globals__, given.__name__, given.__defaults__)
    copy.__kwdefaults__ = given.__kwdefaults__
    copy.__annotations__ = {**given.__annotations__, "return": AsyncGenerator[Chunk, None]}
    return copy


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
            TriptychError: See `triptych.errors`; nothing is retried after the first chunk.
        """

    @abstractmethod
    async def health(self) -> bool:
        """Whether the gateway's process answers; without retries.

        Raises:
            TriptychError: Gateway unreachable, or not a Triptych gateway.
        """

    @abstractmethod
    async def ready(self) -> bool:
        """Whether every required model answers and the gateway is not draining; without retries.

        Raises:
            TriptychError: Gateway unreachable, or not a Triptych gateway.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close the connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    models = awaiting(BlockingClient.models)
    put_glossary = awaiting(BlockingClient.put_glossary)
    glossary = awaiting(BlockingClient.glossary)
    glossaries = awaiting(BlockingClient.glossaries)
    delete_glossary = awaiting(BlockingClient.delete_glossary)
