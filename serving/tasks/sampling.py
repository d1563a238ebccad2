"""What a `GenerateRequest` changes in a model's way of generating."""

from __future__ import annotations

from collections.abc import Sequence

from serving.errors import InvalidRequest
from serving.generation import Generation, Overrides
from serving.tasks.model import LoadedModel, TaskLimits
from triptych.tasks.generate import GenerateRequest

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "best_of")
_SAME = (
    "max_new_tokens",
    "length_penalty",
    "early_stopping",
    "no_repeat_ngram_size",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
"""Fields that mean the same to the engine."""


def overrides(
    request: GenerateRequest, model: LoadedModel, limits: TaskLimits, stops: Sequence[str]
) -> Overrides:
    """The request's rules, as the engine takes them.

    Tokens are sampled when a field of sampling is given, when several answers are asked for and
    no beams, or when the checkpoint says so; temperature 0 takes the best token.

    Args:
        stops: What ends an answer, asked for or by default.

    Raises:
        InvalidRequest: fields that exclude each other, or more than the gateway takes.
    """
    _check_caps(request, model, limits)
    hypotheses = request.n or 1
    is_sampled = _is_sampled(request, model.generation)
    beams = 1 if is_sampled else request.num_beams or _default_beams(model.generation, hypotheses)
    _check_answers(request, hypotheses, beams, is_sampled=is_sampled)
    sampling = _SAMPLING if is_sampled else ()
    # The score of an answer that a stop string ends is made of its tokens' log-probabilities.
    is_scored = bool(stops) and not request.stream
    asks_log_probs = request.logprobs is not None or is_scored
    return Overrides(
        num_beams=beams,
        num_return_sequences=hypotheses,
        do_sample=is_sampled,
        top_log_probs=request.logprobs or 0 if asks_log_probs else None,
        **{name: getattr(request, name) for name in (*_SAME, *sampling)},
    )


def _is_sampled(request: GenerateRequest, defaults: Generation) -> bool:
    if request.temperature == 0:
        return False
    asked = [name for name in _SAMPLING if getattr(request, name) is not None]
    if (request.num_beams or 1) > 1:
        if asked:
            raise InvalidRequest(
                f"num_beams is {request.num_beams}, and {asked[0]} samples: leave one of them out",
                field="num_beams",
            )
        return False
    several = (request.n or 1) > 1 and request.num_beams is None and defaults.num_beams == 1
    return bool(asked) or defaults.do_sample or several


def _default_beams(defaults: Generation, hypotheses: int) -> int:
    """The checkpoint's beams, as many more as it takes; one where it samples by default."""
    return max(defaults.num_beams, hypotheses) if defaults.num_beams > 1 else 1


def _check_answers(
    request: GenerateRequest, hypotheses: int, beams: int, *, is_sampled: bool
) -> None:
    rows = request.best_of or hypotheses if is_sampled else beams
    if request.best_of is not None and not is_sampled:
        raise InvalidRequest("best_of is for sampling, and temperature is 0", field="best_of")
    if hypotheses > rows:
        limit = "best_of" if is_sampled else "num_beams"
        raise InvalidRequest(
            f"n is {hypotheses}, but {limit} is {rows}: ask for as many at least", field="n"
        )
    if request.stream and rows > 1:
        field = next((name for name in ("n", "best_of") if (getattr(request, name) or 1) > 1), None)
        raise InvalidRequest(
            "a stream carries one answer, chosen token by token: "
            "leave n and best_of out and ask for num_beams 1",
            field=field or "num_beams",
        )


def _check_caps(request: GenerateRequest, model: LoadedModel, limits: TaskLimits) -> None:
    for name, limit in (("n", limits.max_best_of), ("best_of", limits.max_best_of)):
        value = getattr(request, name)
        if value is not None and value > limit:
            raise InvalidRequest(f"{name} is {value}, at most {limit} are taken", field=name)
    stops = len(request.stop or ())
    if stops > limits.max_stop_sequences:
        raise InvalidRequest(
            f"stop holds {stops} texts, at most {limits.max_stop_sequences} are taken",
            field="stop",
        )
    words = model.manifest.vocabulary_size
    unknown = [token for token in request.logit_bias or () if words is not None and token >= words]
    if unknown:
        raise InvalidRequest(
            f"logit_bias has token {unknown[0]}, {model.name} knows 0 to {(words or 0) - 1}",
            field="logit_bias",
        )
