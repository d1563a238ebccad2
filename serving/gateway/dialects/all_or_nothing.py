"""What dialects of other APIs share: closed bodies, requests that succeed as a whole, tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from fastapi import Response
from pydantic import BaseModel, ConfigDict

from inference.errors import InvalidRequest, ServingError
from inference.tasks.shared.items import error_of
from serving.gateway.admission.auth import KeyedRoutes
from serving.gateway.http.dialect import StreamRenderer
from serving.gateway.requests.service import TaskRequest, TaskResponse
from triptych.messages import ClosedMessage, PromptLogprob, TokenLogprob, TopToken

MAX_DIMENSIONS = 65_536
CUT_HEADER = "x-truncated-characters"
"""How many characters of a request's texts were cut off; absent where none were."""
AnyToken: TypeAlias = TokenLogprob | PromptLogprob | TopToken


class Closed(ClosedMessage):
    """Base of requests: unknown fields are refused by name, unless they ask for nothing."""


class Open(BaseModel):
    """Base of responses."""

    model_config = ConfigDict(frozen=True)


class WholeAnswers(KeyedRoutes, ABC):
    """Base of dialects whose requests succeed as a whole; implements `Dialect` in part."""

    shows_timings = False

    @abstractmethod
    def dump_answer(self, request: TaskRequest, response: TaskResponse) -> bytes | str:
        """The JSON of the response, whose items have no errors.

        Raises:
            InvalidRequest: the answer cannot be given in the form that is requested.
        """

    @abstractmethod
    def render_error(self, error: ServingError) -> Response:
        """See `Dialect.render_error`."""

    def render_answer(self, request: TaskRequest, response: TaskResponse) -> Response:
        """The answer as JSON.

        Raises:
            ServingError: a result failed; the first one's error is that of the request.
        """
        results = self.results(response.data)
        check_each(results)
        cut = sum(getattr(one, "truncated_characters", None) or 0 for one in results)
        headers = {CUT_HEADER: str(cut)} if cut else None
        answer = self.dump_answer(request, response)
        return Response(answer, headers=headers, media_type="application/json")

    def results(self, data: Sequence[Any]) -> Sequence[Any]:
        """What has an error or was cut, each by itself: the response's items."""
        return data

    def render_stream(self, request: TaskRequest) -> StreamRenderer:
        """See `Dialect.render_stream`; only routes that stream are asked."""
        raise NotImplementedError


def check_each(items: Iterable[Any]) -> None:
    """Refuse items of which one failed: a request succeeds as a whole or not at all.

    Raises:
        ServingError: the first error of an item.
    """
    for item in items:
        if item.error is not None:
            raise error_of(item.error)


def is_part_of_character(found: AnyToken) -> bool:
    """Whether a token begins or ends within a character, so that its text alone is U+FFFD."""
    try:
        bytes(found.bytes).decode()
    except UnicodeDecodeError:
        return True
    return False


def shortened(embedding: list[float], dimensions: int | None) -> list[float]:
    """The first numbers of a vector, scaled to unit length again; all of them for None.

    Raises:
        InvalidRequest: more than it has.
    """
    if dimensions is None or dimensions == len(embedding):
        return embedding
    if dimensions > len(embedding):
        raise InvalidRequest(
            f"dimensions is {dimensions}: the model's embeddings have {len(embedding)}",
            field="dimensions",
        )
    vector = np.array(embedding[:dimensions], np.float32)
    numbers: list[float] = (vector / (np.linalg.norm(vector) or 1.0)).tolist()
    return numbers
