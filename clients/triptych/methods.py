"""Verbs as methods of a client: `translate = blocking(calls.translate)`.

The method has the verb's arguments and documentation and answers with the verb's type.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from pydantic import BaseModel

from triptych.calls import Call

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer", bound=BaseModel)
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Blocking(Protocol):
    def _send(self, call: Call[Answer]) -> Answer: ...

    def _stream(self, call: Call[Answer]) -> Iterator[Answer]: ...


class _Async(Protocol):
    async def _send(self, call: Call[Answer]) -> Answer: ...

    def _stream(self, call: Call[Answer]) -> AsyncIterator[Answer]: ...


def blocking(
    verb: Callable[Arguments, Call[Answer]],
) -> Callable[Concatenate[_Blocking, Arguments], Answer]:
    """A method that sends what `verb` makes, and waits for the answer."""

    def method(self: _Blocking, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        return self._send(verb(*args, **kwargs))

    return _documented(method, verb)


def awaitable(
    verb: Callable[Arguments, Call[Answer]],
) -> Callable[Concatenate[_Async, Arguments], Awaitable[Answer]]:
    """A coroutine method that sends what `verb` makes."""

    async def method(self: _Async, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        return await self._send(verb(*args, **kwargs))

    return _documented(method, verb)


def iterating(
    verb: Callable[Arguments, Call[Answer]],
) -> Callable[Concatenate[_Blocking, Arguments], Iterator[Answer]]:
    """A method that sends what `verb` makes, and gives the answer's pieces as they come."""

    def method(
        self: _Blocking, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Iterator[Answer]:
        return self._stream(verb(*args, **kwargs))

    return _documented(method, verb)


def async_iterating(
    verb: Callable[Arguments, Call[Answer]],
) -> Callable[Concatenate[_Async, Arguments], AsyncIterator[Answer]]:
    """The same, for `async for`."""

    def method(
        self: _Async, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> AsyncIterator[Answer]:
        return self._stream(verb(*args, **kwargs))

    return _documented(method, verb)


def _documented(method: _Function, verb: Callable[..., Call[Answer]]) -> _Function:
    """`method` under the verb's name, with its docstring and its signature after `self`."""
    functools.update_wrapper(method, verb)
    del method.__wrapped__  # type: ignore[attr-defined]  # signature() would look through it
    signature = inspect.signature(verb)
    myself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [myself, *signature.parameters.values()]
    )
    return method
