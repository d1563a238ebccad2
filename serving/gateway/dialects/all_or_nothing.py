"""What dialects of other APIs share: closed bodies, and requests that succeed as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from inference.errors import InvalidRequest
from triptych.messages import ItemError

MAX_DIMENSIONS = 65_536


class Closed(BaseModel):
    """Base of requests: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Open(BaseModel):
    """Base of responses."""

    model_config = ConfigDict(frozen=True)


def first_error(items: Iterable[Any]) -> ItemError | None:
    """The first error among items: a request succeeds as a whole or not at all."""
    return next((item.error for item in items if item.error is not None), None)


def refused(error: ItemError) -> InvalidRequest:
    """The error of an item, which in these APIs is that of the request."""
    return InvalidRequest(error.message, field=error.field)


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
