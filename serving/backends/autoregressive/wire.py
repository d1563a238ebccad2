"""Between the tensors of `serving/interface.py` and the engine's requests and answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from serving import interface
from serving.engine.request import Finished, Request
from serving.errors import InternalError, InvalidRequest, TriptychError
from serving.generation import Generation, Overrides

Arrays = dict[str, NDArray[Any]]


def read_request(tensors: Mapping[str, NDArray[Any]], defaults: Generation) -> Request:
    """The engine's request; arrays are copied, because Triton takes its memory back.

    Raises:
        InvalidRequest: the options are no `Overrides`, or do not fit the defaults.
    """
    overrides = _read_options(tensors.get(interface.OPTIONS))
    deadline_ms = overrides.deadline_ms
    prompt = tensors.get(interface.PROMPT_IDS)
    return Request(
        rules=_merged(defaults, overrides),
        source_ids=_copied(tensors.get(interface.SOURCE_IDS)),
        pixels=_copied(tensors.get(interface.PIXELS)),
        prompt_ids=() if prompt is None else tuple(prompt.tolist()),
        deadline_s=None if deadline_ms is None else time.monotonic() + deadline_ms / 1000,
        stream=overrides.stream,
        priority=overrides.priority,
    )


def piece_arrays(token_ids: Sequence[int]) -> Arrays:
    """One piece of a stream."""
    return {interface.TOKEN_IDS: np.array(token_ids, np.int64)}


def answer_arrays(finished: Finished, last_piece: Sequence[int]) -> Arrays:
    """The last response, with the tokens that have not been streamed yet."""
    found = finished.hypotheses
    longest = max(len(hypothesis.token_ids) for hypothesis in found)
    sequences = np.full((len(found), longest), interface.NO_TOKEN, np.int64)
    for row, hypothesis in zip(sequences, found, strict=True):
        row[: len(hypothesis.token_ids)] = hypothesis.token_ids
    reasons = [hypothesis.finish_reason.encode() for hypothesis in found]
    return {
        **piece_arrays(last_piece),
        interface.SEQUENCES: sequences,
        interface.SCORES: np.array([hypothesis.score for hypothesis in found], np.float32),
        interface.FINISH_REASON: np.array(reasons, np.object_),
        interface.USAGE: np.array([finished.prompt_tokens, finished.generated_tokens], np.int32),
    }


def error_text(error: Exception) -> str:
    """`<wire name>: <message>`; what is not ours is told as an internal error."""
    known = error if isinstance(error, TriptychError) else InternalError(str(error))
    return f"{known.wire}: {known.message}"


def _read_options(tensor: NDArray[Any] | None) -> Overrides:
    if tensor is None or tensor.size == 0:
        return Overrides()
    try:
        return Overrides.model_validate_json(tensor.reshape(-1)[0])
    except ValidationError as error:
        raise _invalid(error) from None


def _merged(defaults: Generation, overrides: Overrides) -> Generation:
    try:
        return defaults.with_overrides(overrides)
    except ValidationError as error:
        raise _invalid(error) from None


def _invalid(error: ValidationError) -> InvalidRequest:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or interface.OPTIONS
    return InvalidRequest(f"{place}: {first['msg']}", field=place)


def _copied(tensor: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if tensor is None else tensor.copy()
