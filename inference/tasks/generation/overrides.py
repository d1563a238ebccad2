"""A request's generation parameters as changes of a model's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from inference.errors import InvalidRequest
from inference.generation import Generation, Overrides
from inference.tasks.shared.loaded_model import LoadedModel
from triptych.parameters import GenerationParameters, StructureParameters

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "best_of")
_COMMON = (
    "max_new_tokens",
    "length_penalty",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
"""Parameters with and without sampling, named alike in requests and in `Overrides`."""


@dataclass(frozen=True)
class OutputOptions:
    """The outputs of a request, beside its generation parameters."""

    n: int | None = None
    """Sequences to return for each prompt."""
    stops: tuple[str, ...] = ()
    """Stop strings, requested or by default."""
    logprobs: int | None = None
    """Most likely tokens to return at each position; None: no log-probabilities."""
    early_stopping: bool | None = None
    stream: bool | None = None
    widens_beam: bool = False
    """Several sequences without a sampling parameter are those of a beam search that is wide
    enough, and not samples."""


def sampling_overrides(
    parameters: GenerationParameters, outputs: OutputOptions, model: LoadedModel
) -> Overrides:
    """Overrides of a request that may sample.

    Tokens are sampled when a sampling parameter is given, when several sequences are requested
    without beams, or when the checkpoint samples by default; temperature 0 takes the most likely
    token.

    Raises:
        InvalidRequest: mutually exclusive fields, or more than the limits.
    """
    _check_caps(parameters, outputs, model)
    hypotheses = outputs.n or 1
    is_sampled = _is_sampled(parameters, outputs, model.generation)
    default_beams = _default_beams(model.generation, outputs)
    if isinstance(parameters, StructureParameters) and parameters.structure is not None:
        default_beams = 1  # it excludes beams
    beams = 1 if is_sampled else parameters.num_beams or default_beams
    _check_rows(parameters, outputs, beams, is_sampled=is_sampled)
    # The score of a text that a stop string ends is the sum of its tokens' log-probabilities.
    is_scored = bool(outputs.stops) and not outputs.stream
    needs_log_probs = outputs.logprobs is not None or is_scored
    names = (*_COMMON, *(_SAMPLING if is_sampled else ()))
    return Overrides(
        num_beams=beams,
        num_return_sequences=hypotheses,
        early_stopping=outputs.early_stopping,
        do_sample=is_sampled,
        top_log_probs=outputs.logprobs or 0 if needs_log_probs else None,
        **{name: getattr(parameters, name) for name in names},
    )


def structured(
    options: Overrides,
    parameters: StructureParameters,
    stops: Sequence[str] | None,
    *,
    allows_space: bool,
) -> Overrides:
    """The options with what outputs must match, if the request says it.

    Args:
        options: Of a call.
        parameters: The request.
        allows_space: A space that is not shown may stand in front of an output.

    Raises:
        InvalidRequest: it excludes another field, or a schema is no JSON.
    """
    name = parameters.structure
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
    if parameters.json_schema is not None:
        try:
            json.loads(parameters.json_schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"json_schema is not JSON: {error}", field=name) from None
    given = {one: getattr(parameters, one) for one in ("choices", "regex", "json_schema")}
    return Overrides.model_validate(
        {**options.model_dump(exclude_none=True), **given, "allows_space": allows_space}
    )


def beam_overrides(
    model: LoadedModel,
    *,
    num_beams: int | None,
    n: int | None,
    stream: bool | None,
    **others: object,
) -> Overrides:
    """Overrides of a request that never samples.

    `n` widens the beam as far as needed, unless `num_beams` is given.

    Args:
        model: Its default beam width counts.
        num_beams: Beam width, as requested.
        n: Hypotheses to return, as requested.
        stream: Whether the response is streamed.
        others: Further fields of `Overrides`.

    Raises:
        InvalidRequest: more hypotheses than beams, or beams in a stream.
    """
    hypotheses = n or 1
    if num_beams is not None and hypotheses > num_beams:
        raise InvalidRequest(
            f"n is {hypotheses}, but num_beams is {num_beams}: set num_beams to at least as many",
            field="n",
        )
    default_beams = _default_beams(
        model.generation, OutputOptions(n, stream=stream, widens_beam=True)
    )
    beams = num_beams or default_beams
    if stream and beams > 1:
        field = "n" if hypotheses > 1 else "num_beams"
        raise InvalidRequest(
            f"{field} is {n or beams}, and a beam search cannot stream: set {field} to 1",
            field=field,
        )
    fields = {"num_beams": beams, "num_return_sequences": hypotheses, **others}
    return Overrides.model_validate(fields)


def _is_sampled(
    parameters: GenerationParameters, outputs: OutputOptions, defaults: Generation
) -> bool:
    if parameters.temperature == 0:
        return False
    given = [name for name in _SAMPLING if getattr(parameters, name) is not None]
    if (parameters.num_beams or 1) > 1:
        if given:
            raise InvalidRequest(
                f"num_beams is {parameters.num_beams}, and {given[0]} samples: "
                "leave one of them out",
                field="num_beams",
            )
        return False
    several = (outputs.n or 1) > 1
    if several and outputs.widens_beam:
        return bool(given)
    are_samples = several and parameters.num_beams is None and defaults.num_beams == 1
    return bool(given) or defaults.do_sample or are_samples


def _default_beams(defaults: Generation, outputs: OutputOptions) -> int:
    """The checkpoint's beams, at least one a hypothesis; one where it samples, or in a stream."""
    hypotheses = outputs.n or 1
    if outputs.stream and hypotheses == 1:
        return 1
    is_search = defaults.num_beams > 1 or outputs.widens_beam
    return max(defaults.num_beams, hypotheses) if is_search else 1


def is_greedy_stream(
    model: LoadedModel, options: Overrides, *, num_beams: int | None, stream: bool | None
) -> bool:
    """Whether a stream takes the place of a beam search that is the model's default.

    Args:
        model: Its default beam width counts.
        options: Of the request's calls.
        num_beams: Beam width, as requested.
        stream: Whether the response is streamed.
    """
    is_replaced = bool(stream) and num_beams is None and model.generation.num_beams > 1
    return is_replaced and not options.do_sample


def _check_rows(
    parameters: GenerationParameters, outputs: OutputOptions, beams: int, *, is_sampled: bool
) -> None:
    hypotheses = outputs.n or 1
    rows = parameters.best_of or hypotheses if is_sampled else beams
    if parameters.best_of is not None and not is_sampled:
        raise InvalidRequest("best_of requires sampling, but temperature is 0", field="best_of")
    if hypotheses > rows:
        limit = "best_of" if is_sampled else "num_beams"
        raise InvalidRequest(
            f"n is {hypotheses}, but {limit} is {rows}: set it to at least as many", field="n"
        )
    if outputs.stream and rows > 1:
        several = {"n": outputs.n, "best_of": parameters.best_of}
        field = next((name for name, value in several.items() if (value or 1) > 1), "num_beams")
        raise InvalidRequest(
            "a stream carries one output, generated token by token: "
            "leave n and best_of out and set num_beams to 1",
            field=field,
        )


def _check_caps(
    parameters: GenerationParameters, outputs: OutputOptions, model: LoadedModel
) -> None:
    for name, value in (("n", outputs.n), ("best_of", parameters.best_of)):
        if value is not None and value > model.task_limits.max_best_of:
            raise InvalidRequest(
                f"{name} is {value}, at most {model.task_limits.max_best_of} are taken", field=name
            )
    if len(outputs.stops) > model.task_limits.max_stop_sequences:
        raise InvalidRequest(
            f"stop holds {len(outputs.stops)} strings, "
            f"at most {model.task_limits.max_stop_sequences} are taken",
            field="stop",
        )
    words = model.manifest.vocabulary_size
    unknown = [t for t in parameters.logit_bias or () if words is not None and t >= words]
    if unknown:
        raise InvalidRequest(
            f"logit_bias has token {unknown[0]}, the vocabulary of {model.name} is "
            f"0 to {(words or 0) - 1}",
            field="logit_bias",
        )
