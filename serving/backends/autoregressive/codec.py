"""Between the tensors of `serving/interface.py` and the engine's requests and answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import ValidationError

from serving import interface
from serving.engine.request import EngineRequest, Finished, Hypothesis, TokenChunk
from serving.errors import InternalError, InvalidRequest, TriptychError
from serving.generation import Generation, Overrides

Arrays = dict[str, NDArray[Any]]


def read_request(tensors: Mapping[str, NDArray[Any]], defaults: Generation) -> EngineRequest:
    """The engine's request; arrays are copied, because Triton takes its memory back.

    Raises:
        InvalidRequest: the options are no `Overrides`, or do not fit the defaults.
    """
    overrides = _read_options(tensors.get(interface.OPTIONS))
    deadline_ms = overrides.deadline_ms
    prompt = tensors.get(interface.PROMPT_IDS)
    return EngineRequest(
        rules=_merged(defaults, overrides),
        source_ids=_copied(tensors.get(interface.SOURCE_IDS)),
        pixels=_copied(tensors.get(interface.PIXELS)),
        prompt_ids=() if prompt is None else tuple(prompt.tolist()),
        deadline_s=None if deadline_ms is None else time.monotonic() + deadline_ms / 1000,
        stream=overrides.stream,
        priority=overrides.priority,
    )


def chunk_arrays(chunks: Sequence[TokenChunk]) -> Arrays:
    """Pieces of a stream that travel together; log-probabilities if it asked for them."""
    joined = [
        Hypothesis(
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            score=0.0,
            finish_reason="",
            log_probs=tuple(value for chunk in chunks for value in chunk.log_probs),
            top=tuple(place for chunk in chunks for place in chunk.top),
        )
    ]
    return {
        interface.TOKEN_IDS: np.array(joined[0].token_ids, np.int64),
        **_log_prob_arrays(joined),
    }


def answer_arrays(finished: Finished, unsent: Sequence[TokenChunk]) -> Arrays:
    """The last response, with the tokens that have not been streamed yet."""
    found = finished.hypotheses
    reasons = [hypothesis.finish_reason.encode() for hypothesis in found]
    return {
        interface.TOKEN_IDS: chunk_arrays(unsent)[interface.TOKEN_IDS],
        interface.SEQUENCES: _padded([h.token_ids for h in found], interface.NO_TOKEN, np.int64),
        interface.SCORES: np.array([hypothesis.score for hypothesis in found], np.float32),
        interface.FINISH_REASON: np.array(reasons, np.object_),
        interface.USAGE: np.array([finished.prompt_tokens, finished.generated_tokens], np.int32),
        **_log_prob_arrays(found),
        **_alignment_arrays(found),
    }


def _log_prob_arrays(found: Sequence[Hypothesis]) -> Arrays:
    """`log_probs`, `top_ids` and `top_log_probs`, where they were asked for."""
    if not any(hypothesis.log_probs for hypothesis in found):
        return {}
    arrays: Arrays = {
        interface.LOG_PROBS: _padded([h.log_probs for h in found], 0, np.float32),
    }
    most = max(len(place) for hypothesis in found for place in hypothesis.top)
    if most:
        shape = (*arrays[interface.LOG_PROBS].shape, most)
        top_ids = np.full(shape, interface.NO_TOKEN, np.int64)
        top_log_probs = np.zeros(shape, np.float32)
        for row, hypothesis in enumerate(found):
            for place, best in enumerate(hypothesis.top):
                for rank, (token, log_prob) in enumerate(best):
                    top_ids[row, place, rank], top_log_probs[row, place, rank] = token, log_prob
        arrays |= {interface.TOP_IDS: top_ids, interface.TOP_LOG_PROBS: top_log_probs}
    return arrays


def _alignment_arrays(found: Sequence[Hypothesis]) -> Arrays:
    """`alignment`, where it was asked for; shorter hypotheses end in zeros."""
    given = [h.alignment for h in found if h.alignment is not None]
    if not given:
        return {}
    longest = max(len(matrix) for matrix in given)
    alignment = np.zeros((len(given), longest, given[0].shape[1]), np.float32)
    for target, matrix in zip(alignment, given, strict=True):
        target[: len(matrix)] = matrix
    return {interface.ALIGNMENT: alignment}


def _padded(rows: Sequence[Sequence[Any]], filling: int, dtype: DTypeLike) -> NDArray[Any]:
    """Rows as (rows, longest), filled up behind."""
    padded = np.full((len(rows), max(map(len, rows))), filling, dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


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
