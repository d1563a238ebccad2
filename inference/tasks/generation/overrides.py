"""A request's generation parameters as changes of a model's own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inference.errors import InvalidRequest
from inference.generation import Generation, Overrides
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import GenerateCall
from triptych.messages import BeamParameters, OutputParameters, StreamRequest, StructureParameters

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "best_of")
_COMMON = (
    "early_stopping",
    "max_new_tokens",
    "length_penalty",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
"""Parameters with and without sampling, named alike in requests and in `Overrides`."""


def sampling_overrides(
    request: OutputParameters,
    model: LoadedModel,
    *,
    stops: Sequence[str] = (),
    logprobs: int | None = None,
    widens_beam: bool = False,
) -> Overrides:
    """Overrides of a request that may sample.

    Tokens are sampled when a sampling parameter is given, when several sequences are requested
    without beams, or when the checkpoint samples by default; temperature 0 takes the most likely
    token.

    Args:
        stops: Stop strings, requested or by default.
        logprobs: Most likely tokens to return at each position; None: no log-probabilities.
        widens_beam: Several sequences without a sampling parameter are those of a beam search that
            is wide enough, and not samples.

    Raises:
        InvalidRequest: mutually exclusive fields, or more than the limits.
    """
    _check_caps(request, stops, model)
    is_sampled = _is_sampled(request, model.generation, widens_beam=widens_beam)
    default_beams = _default_beams(request, request.n, model, widens_beam=widens_beam)
    if isinstance(request, StructureParameters) and request.structure is not None:
        default_beams = 1  # it excludes beams
    beams = 1 if is_sampled else request.num_beams or default_beams
    _check_rows(request, beams, is_sampled=is_sampled)
    # The score of a text that a stop string ends is the sum of its tokens' log-probabilities.
    is_scored = bool(stops) and not _streams(request)
    names = (*_COMMON, *(_SAMPLING if is_sampled else ()))
    return Overrides(
        num_beams=beams,
        num_return_sequences=request.n or 1,
        do_sample=is_sampled,
        top_log_probs=logprobs or 0 if logprobs is not None or is_scored else None,
        **{name: getattr(request, name) for name in names},
    )


def add_structure(
    options: Overrides,
    request: StructureParameters,
    stops: Sequence[str] | None,
    *,
    allows_space: bool,
) -> Overrides:
    """The options of a call with what outputs must match, if the request says it.

    Args:
        stops: Stop strings, as requested.
        allows_space: A space that is not shown may stand in front of an output.

    Raises:
        InvalidRequest: it excludes another field, or a schema is no JSON.
    """
    name = request.structure
    if name is None:
        return options
    if stops:
        raise InvalidRequest(
            f"a stop string could cut what matches {name}: leave stop out", field="stop"
        )
    if (options.num_beams or 1) > 1:
        raise InvalidRequest(
            f"{name} excludes beams, num_beams is {options.num_beams}: set it to 1",
            field="num_beams",
        )
    if request.json_schema is not None:
        try:
            json.loads(request.json_schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"json_schema is not JSON: {error}", field=name) from None
    given = {one: getattr(request, one) for one in ("choices", "regex", "json_schema")}
    return Overrides.model_validate(
        {**options.model_dump(exclude_none=True), **given, "allows_space": allows_space}
    )


def beam_overrides(
    request: BeamParameters, model: LoadedModel, *, n: int | None, **others: object
) -> Overrides:
    """Overrides of a request that never samples.

    `n` widens the beam as far as needed, unless `num_beams` is given.

    Args:
        n: Hypotheses to return, as requested.
        others: Further fields of `Overrides`.

    Raises:
        InvalidRequest: more hypotheses than beams, or beams in a stream.
    """
    hypotheses = n or 1
    if request.num_beams is not None and hypotheses > request.num_beams:
        raise InvalidRequest(
            f"n is {hypotheses}, but num_beams is {request.num_beams}: set num_beams to at least "
            "as many",
            field="n",
        )
    beams = request.num_beams or _default_beams(request, n, model, widens_beam=True)
    if _streams(request) and beams > 1:
        field = "n" if hypotheses > 1 else "num_beams"
        raise InvalidRequest(
            f"{field} is {n or beams}, and a beam search cannot stream: set {field} to 1",
            field=field,
        )
    return Overrides.model_validate(
        {
            "num_beams": beams,
            "num_return_sequences": hypotheses,
            "length_penalty": request.length_penalty,
            **others,
        }
    )


def _is_sampled(request: OutputParameters, defaults: Generation, *, widens_beam: bool) -> bool:
    if request.temperature == 0:
        return False
    given = [name for name in _SAMPLING if getattr(request, name) is not None]
    if (request.num_beams or 1) > 1:
        if given:
            raise InvalidRequest(
                f"num_beams is {request.num_beams}, and {given[0]} samples: leave one of them out",
                field="num_beams",
            )
        return False
    several = (request.n or 1) > 1
    if several and widens_beam:
        return bool(given)
    are_samples = several and request.num_beams is None and defaults.num_beams == 1
    return bool(given) or defaults.do_sample or are_samples


def _default_beams(
    request: BeamParameters, n: int | None, model: LoadedModel, *, widens_beam: bool
) -> int:
    """The checkpoint's beams, at least one a hypothesis; one where it samples, or in a stream."""
    hypotheses, beams = n or 1, model.generation.num_beams
    if _streams(request) and hypotheses == 1:
        return 1
    return max(beams, hypotheses) if beams > 1 or widens_beam else 1


def _streams(request: BeamParameters) -> bool:
    return isinstance(request, StreamRequest) and bool(request.stream)


def is_greedy_stream(
    request: BeamParameters, calls: Sequence[GenerateCall], model: LoadedModel
) -> bool:
    """Whether a stream takes the place of a beam search that is the model's default."""
    has_beams = request.num_beams is None and model.generation.num_beams > 1
    return _streams(request) and has_beams and not any(call.options.do_sample for call in calls)


def _check_rows(request: OutputParameters, beams: int, *, is_sampled: bool) -> None:
    hypotheses = request.n or 1
    rows = request.best_of or hypotheses if is_sampled else beams
    if request.best_of is not None and not is_sampled:
        raise InvalidRequest("best_of requires sampling, but temperature is 0", field="best_of")
    if hypotheses > rows:
        limit = "best_of" if is_sampled else "num_beams"
        raise InvalidRequest(
            f"n is {hypotheses}, but {limit} is {rows}: set it to at least as many", field="n"
        )
    if _streams(request) and rows > 1:
        several = {"n": request.n, "best_of": request.best_of}
        field = next((name for name, value in several.items() if (value or 1) > 1), "num_beams")
        raise InvalidRequest(
            "a stream carries one output, generated token by token: "
            "leave n and best_of out and set num_beams to 1",
            field=field,
        )


def _check_caps(request: OutputParameters, stops: Sequence[str], model: LoadedModel) -> None:
    for name, value in (("n", request.n), ("best_of", request.best_of)):
        if value is not None and value > model.task_limits.max_best_of:
            raise InvalidRequest(
                f"{name} is {value}, at most {model.task_limits.max_best_of} are taken", field=name
            )
    if len(stops) > model.task_limits.max_stop_sequences:
        raise InvalidRequest(
            f"stop holds {len(stops)} strings, "
            f"at most {model.task_limits.max_stop_sequences} are taken",
            field="stop",
        )
    words = model.manifest.vocabulary_size
    unknown = [t for t in request.logit_bias or () if words is not None and t >= words]
    if unknown:
        raise InvalidRequest(
            f"logit_bias has token {unknown[0]}, the vocabulary of {model.name} is "
            f"0 to {(words or 0) - 1}",
            field="logit_bias",
        )


def check_stream(stream: bool | None, **fields: object) -> None:
    """Raises InvalidRequest where a stream is requested together with a field it cannot carry."""
    for name, value in fields.items():
        if stream and value:
            raise InvalidRequest(f"a stream does not carry {name}: leave one out", field=name)
