"""The tensors between gateway and Triton: their names, and both directions of their codec.

The gateway encodes requests and decodes responses of generators, the backend `autoregressive`
decodes requests and encodes responses. Pure numpy: transport is the caller's.

Generators are decoupled models (`max_batch_size: 0`). One request is one sequence; a gRPC stream
carries many, identified by request id. Inputs have no batch dimension; absent ones are left out:

| input          | dtype, shape             | meaning                                            |
|----------------|--------------------------|----------------------------------------------------|
| `source_ids`   | INT64 (S,)               | encoder tokens, special tokens included            |
| `pixels`       | UINT8 (height, width, 3) | preprocessed image; (I, …) where prompts hold them |
|                | or FP32, the same        | by `ImageSpec.dtype`                               |
| `image_sizes`  | INT64 (I, 2)             | height and width of each image, where they differ  |
| `prompt_ids`   | INT64 (T,)               | decoder tokens after the model's own start tokens  |
| `options`      | BYTES (1,)               | `inference.generation.Overrides` as JSON; may be `{}`|

A streaming request gets chunks with `token_ids` (and `log_probs`, `top_ids`, `top_log_probs` of
these tokens if requested: N = 1, L = n). The last response has all outputs, for N hypotheses, best
first, the longest of L tokens:

| output          | dtype, shape    | meaning                                                      |
|-----------------|-----------------|--------------------------------------------------------------|
| `token_ids`     | INT64 (n,)      | tokens not streamed before; empty without streaming          |
| `sequences`     | INT64 (N, L)    | generated tokens, end token included, padded with -1         |
| `scores`        | FP32 (N,)       | sum of processed log-probabilities over length^length_penalty|
| `finish_reason` | BYTES (N,)      | `stop` or `length`                                           |
| `log_probs`     | FP32 (N, L)     | of the tokens of `sequences`, if requested; padded with 0    |
| `top_ids`       | INT64 (N, L, K) | the K best tokens per position, if requested; padded with -1 |
| `top_log_probs` | FP32 (N, L, K)  | log-probabilities of `top_ids`                               |
| `alignment`     | FP32 (N, L, S)  | attention to the source per token, if requested; zero-padded |
| `usage`         | INT32 (2,)      | prompt (source) tokens, generated tokens over all hypotheses |

Log-probabilities are the terms of `scores`: after penalties, bias and bans, at temperature 1,
before truncation (`inference.generation.Generation.top_log_probs`).

A request with the option `generated_ids` goes on behind these tokens, which were generated before
its sequence was lost; `sequences`, `scores` and log-probabilities are of the tokens behind them.

To abort a sequence the gateway sends its request again with the same id and the parameter `abort`:
both requests end without a further response, before the next step.

Errors are Triton errors, whose text is that of `inference.model_errors`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import ValidationError

from inference.engine.request import EngineRequest
from inference.errors import InternalError, InvalidRequest
from inference.generation import (
    Finished,
    Generation,
    Hypothesis,
    Overrides,
    TokenChunk,
    Top,
    concatenate,
)
from triptych.errors import first_fault

SOURCE_IDS = "source_ids"
PIXELS = "pixels"
IMAGE_SIZES = "image_sizes"
PROMPT_IDS = "prompt_ids"
OPTIONS = "options"
INPUTS = (SOURCE_IDS, PIXELS, IMAGE_SIZES, PROMPT_IDS, OPTIONS)
ABORT = "abort"
"""A parameter of the request, not a tensor."""

TOKEN_IDS = "token_ids"
SEQUENCES = "sequences"
SCORES = "scores"
FINISH_REASON = "finish_reason"
LOG_PROBS = "log_probs"
TOP_IDS = "top_ids"
TOP_LOG_PROBS = "top_log_probs"
ALIGNMENT = "alignment"
USAGE = "usage"

NO_TOKEN = -1

Arrays: TypeAlias = dict[str, NDArray[Any]]

# ---------------------------------------------------------------------------------- requests


def encode_request(inputs: Mapping[str, NDArray[Any]], options: Overrides) -> Arrays:
    """Tensors of a request; `inputs` are its tensors without the options."""
    encoded = options.model_dump_json(exclude_none=True).encode()
    return {**inputs, OPTIONS: np.array([encoded], np.object_)}


def decode_request(tensors: Mapping[str, NDArray[Any]], defaults: Generation) -> EngineRequest:
    """The engine's request. Arrays are copied: Triton reuses its buffers.

    Raises:
        InvalidRequest: the options are not valid `Overrides`, or conflict with the defaults.
    """
    given = tensors.get(OPTIONS, np.empty(0))
    try:
        overrides = Overrides.model_validate_json(given.reshape(-1)[0] if given.size else "{}")
        rules = defaults.with_overrides(overrides)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidRequest(f"{field or OPTIONS}: {message}", field=field or OPTIONS) from None
    deadline_ms = overrides.deadline_ms
    prompt = tensors.get(PROMPT_IDS)
    return EngineRequest(
        rules=rules,
        source_ids=_copy(tensors.get(SOURCE_IDS)),
        pixels=_copy(tensors.get(PIXELS)),
        image_sizes=_copy(tensors.get(IMAGE_SIZES)),
        prompt_ids=() if prompt is None else tuple(prompt.tolist()),
        deadline_s=None if deadline_ms is None else time.monotonic() + deadline_ms / 1000,
        stream=overrides.stream,
        priority=overrides.priority,
    )


def _copy(tensor: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if tensor is None else tensor.copy()


# --------------------------------------------------------------------------------- responses


def encode_chunks(chunks: Sequence[TokenChunk]) -> Arrays:
    """Tensors of consecutive chunks sent as one; log-probabilities if the chunks have them."""
    whole = concatenate(chunks)
    return {TOKEN_IDS: np.array(whole.token_ids, np.int64), **_encode_log_probs([whole])}


def decode_chunk(tensors: Mapping[str, NDArray[Any]]) -> TokenChunk:
    """The newly generated tokens of any response, with their log-probabilities if present."""
    token_ids = tensors.get(TOKEN_IDS)
    ids: tuple[int, ...] = () if token_ids is None else tuple(token_ids.tolist())
    count = len(ids)
    sequences = tensors.get(SEQUENCES)
    is_last = sequences is not None
    if not count or (log_probs := tensors.get(LOG_PROBS)) is None:
        return TokenChunk(ids, is_last=is_last)
    # The last response has log-probabilities of all tokens; the chunk's are the last of them.
    length = count if sequences is None else sequences.shape[1]
    own = slice(length - count, length)
    scores = tuple(log_probs[0, own].tolist()), _decode_top(tensors, 0)[own]
    return TokenChunk(ids, *scores, is_last=is_last)


def encode_finished(finished: Finished, unsent: Sequence[TokenChunk]) -> Arrays:
    """Tensors of the last response; `unsent` are the chunks not streamed yet."""
    found = finished.hypotheses
    reasons = [hypothesis.finish_reason.encode() for hypothesis in found]
    return {
        TOKEN_IDS: encode_chunks(unsent)[TOKEN_IDS],
        SEQUENCES: _pad_rows([h.token_ids for h in found], NO_TOKEN, np.int64),
        SCORES: np.array([hypothesis.score for hypothesis in found], np.float32),
        FINISH_REASON: np.array(reasons, np.object_),
        USAGE: np.array([finished.prompt_tokens, finished.generated_tokens], np.int32),
        **_encode_log_probs(found),
        **_encode_alignments(found),
    }


def decode_finished(tensors: Mapping[str, NDArray[Any]]) -> Finished:
    """The hypotheses of the last response.

    Raises:
        InternalError: an output that every last response has is missing.
    """
    for name in (SEQUENCES, SCORES, FINISH_REASON, USAGE):
        if name not in tensors:
            raise InternalError(f"the response has no output {name}: export the model again")
    reasons = [reason.decode() for reason in tensors[FINISH_REASON].reshape(-1)]
    log_probs, alignment = tensors.get(LOG_PROBS), tensors.get(ALIGNMENT)
    found = []
    for row, padded in enumerate(tensors[SEQUENCES].tolist()):
        ids = tuple(padded[: padded.index(NO_TOKEN)] if NO_TOKEN in padded else padded)
        own = slice(0, len(ids))
        found.append(
            Hypothesis(
                ids,
                float(tensors[SCORES][row]),
                reasons[row],
                log_probs=() if log_probs is None else tuple(log_probs[row, own].tolist()),
                top=_decode_top(tensors, row)[own],
                alignment=None if alignment is None else alignment[row, own],
            )
        )
    return Finished(tuple(found), int(tensors[USAGE][0]))


def _encode_log_probs(found: Sequence[Hypothesis | TokenChunk]) -> Arrays:
    """`log_probs`, `top_ids` and `top_log_probs`, where requested."""
    if not any(hypothesis.log_probs for hypothesis in found):
        return {}
    arrays: Arrays = {LOG_PROBS: _pad_rows([h.log_probs for h in found], 0, np.float32)}
    most = max((len(top) for hypothesis in found for top in hypothesis.top), default=0)
    if most:
        shape = (*arrays[LOG_PROBS].shape, most)
        top_ids = np.full(shape, NO_TOKEN, np.int64)
        top_log_probs = np.zeros(shape, np.float32)
        for row, hypothesis in enumerate(found):
            for position, top in enumerate(hypothesis.top):
                for rank, (token, log_prob) in enumerate(top):
                    top_ids[row, position, rank] = token
                    top_log_probs[row, position, rank] = log_prob
        arrays |= {TOP_IDS: top_ids, TOP_LOG_PROBS: top_log_probs}
    return arrays


def _decode_top(tensors: Mapping[str, NDArray[Any]], row: int) -> tuple[Top, ...]:
    """The best tokens at each position of a hypothesis; empty if not requested."""
    if TOP_IDS not in tensors or TOP_LOG_PROBS not in tensors:
        return ()
    columns = tensors[TOP_IDS][row].tolist(), tensors[TOP_LOG_PROBS][row].tolist()
    return tuple(
        tuple((token, value) for token, value in zip(*position, strict=True) if token != NO_TOKEN)
        for position in zip(*columns, strict=True)
    )


def _encode_alignments(found: Sequence[Hypothesis]) -> Arrays:
    """`alignment`, where requested; shorter hypotheses are padded with zeros."""
    given = [h.alignment for h in found if h.alignment is not None]
    if not given:
        return {}
    longest = max(len(matrix) for matrix in given)
    alignment = np.zeros((len(given), longest, given[0].shape[1]), np.float32)
    for target, matrix in zip(alignment, given, strict=True):
        target[: len(matrix)] = matrix
    return {ALIGNMENT: alignment}


def _pad_rows(rows: Sequence[Sequence[Any]], filling: int, dtype: DTypeLike) -> NDArray[Any]:
    """Rows as (rows, longest), right-padded."""
    padded = np.full((len(rows), max(map(len, rows))), filling, dtype)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded
