"""What the generated methods of a client need: a way to send an operation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Mapping
from typing import TypeVar

from pydantic import BaseModel

from triptych import glossary_operations as operations
from triptych.glossaries import Glossary, GlossaryInfo, GlossaryList
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
        return self.send(operations.put_glossary(name, terms, source, target))

    def glossary(self, name: str) -> Glossary:
        """A stored glossary with its terms.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operations.get_glossary(name))

    def glossaries(self) -> GlossaryList:
        """The stored glossaries of this key, without their terms.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operations.LIST_GLOSSARIES)

    def delete_glossary(self, name: str) -> GlossaryInfo:
        """Delete a stored glossary; what it was.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return self.send(operations.delete_glossary(name))


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

    async def put_glossary(
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
        return await self.send(operations.put_glossary(name, terms, source, target))

    async def glossary(self, name: str) -> Glossary:
        """A stored glossary with its terms.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return await self.send(operations.get_glossary(name))

    async def glossaries(self) -> GlossaryList:
        """The stored glossaries of this key, without their terms.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return await self.send(operations.LIST_GLOSSARIES)

    async def delete_glossary(self, name: str) -> GlossaryInfo:
        """Delete a stored glossary; what it was.

        Raises:
            TriptychError: See `triptych.errors`.
        """
        return await self.send(operations.delete_glossary(name))
