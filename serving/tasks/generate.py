"""Generation: one call for each prompt, laid out with its examples, until its end or a stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from serving.codec import PROMPT_IDS, SOURCE_IDS
from serving.errors import InvalidRequest, TooLong, TriptychError
from serving.generation import FinishReason, Overrides
from serving.processing.detokenizer import LeadingSpace
from serving.tasks import fewshot
from serving.tasks.batch import attempt_each, in_place, unwrap
from serving.tasks.call import GenerateCall, Generated, Outcome
from serving.tasks.model import LoadedModel, TaskLimits
from serving.tasks.sampling import overrides
from serving.tasks.stream import Part, StreamedItem, Streaming
from serving.tasks.tokens import LiveText, Tokens
from triptych.messages import TokenLogprob, TopToken, Usage
from triptych.tasks.generate import Continuation, GenerateRequest, GenerateResponse, Generation


@dataclass(frozen=True)
class GeneratePlan:
    """The calls of one request and how their outcomes become its answer."""

    model: LoadedModel
    places: tuple[int | TriptychError, ...]
    """For each prompt its call's number, or why it has none."""
    calls: tuple[GenerateCall, ...]
    read: Callable[[], LiveText]
    length_penalty: float
    with_alternatives: bool
    with_logprobs: bool

    def finish(self, outcomes: Sequence[Outcome]) -> GenerateResponse:
        """The answer, given one outcome for each call.

        Raises:
            TriptychError: no prompt has an answer; the first one's error.
        """
        completion_tokens = 0

        def generated(index: int, place: int | TriptychError) -> Generation:
            nonlocal completion_tokens
            outcome = unwrap(outcomes[unwrap(place)])
            assert isinstance(outcome, Generated)
            found = [self._continuation(outcome, rank) for rank in range(len(outcome.sequences))]
            completion_tokens += sum(tokens for _, tokens in found)
            # A stop string may change who is best, and samples come as they were drawn.
            found.sort(key=lambda answer: _ranking(answer[0].score), reverse=True)
            best = found[0][0]
            return Generation(
                index=index,
                **{name: getattr(best, name) for name in type(best).model_fields},
                alternatives=[answer for answer, _ in found] if self.with_alternatives else None,
            )

        results = attempt_each(self.places, generated)
        answered = [outcome for outcome in outcomes if isinstance(outcome, Generated)]
        prompt_tokens = sum(outcome.prompt_tokens for outcome in answered)
        return GenerateResponse(
            model=self.model.name,
            data=in_place(results, Generation),
            usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=completion_tokens),
        )

    def streaming(self) -> Streaming:
        """The answer as pieces."""
        items = [
            place if isinstance(place, TriptychError) else StreamedItem((Part(place, self.read),))
            for place in self.places
        ]
        return Streaming(items, self.calls, self._shown)

    def _continuation(self, outcome: Generated, rank: int) -> tuple[Continuation, int]:
        """One hypothesis, cut at a stop string, and the tokens that are left of it."""
        ids = outcome.sequences[rank]
        log_probs = outcome.log_probs[rank] if outcome.log_probs else ()
        tokens = Tokens(ids, log_probs, outcome.top[rank] if outcome.top else ())
        live = self.read()
        text = live.add(tokens) + live.finish()
        kept = tokens[: live.length]
        score: float | None = outcome.scores[rank]
        reason = outcome.finish_reasons[rank]
        if live.is_stopped:
            score, reason = _score(kept, self.length_penalty), FinishReason.STOP
        answer = Continuation(
            text=text, finish_reason=reason, score=score, logprobs=self._shown(kept)
        )
        return answer, live.length

    def _shown(self, tokens: Tokens) -> list[TokenLogprob] | None:
        if not (self.with_logprobs and tokens.log_probs):
            return None
        pieces = self.model.tokenizer.pieces
        tops = tokens.top or ((),) * len(tokens.ids)
        return [
            TokenLogprob(
                token=token,
                logprob=log_prob,
                top=[TopToken(token=pieces([other])[0], logprob=score) for other, score in top],
            )
            for token, log_prob, top in zip(pieces(tokens.ids), tokens.log_probs, tops, strict=True)
        ]


def prepare(request: GenerateRequest, model: LoadedModel, limits: TaskLimits) -> GeneratePlan:
    """A request's calls: one for each prompt.

    Raises:
        InvalidRequest: too many prompts, fields that exclude each other, an unusable example.
        TriptychError: no prompt can be continued; the first one's error.
    """
    limits.check_batch(len(request.prompts), "prompts")
    header = fewshot.header(request.instruction, request.examples or ())
    stops = tuple(request.stop or ([fewshot.STOP] if header else ()))
    options = overrides(request, model, limits, stops)

    def read() -> LiveText:
        return LiveText(model.tokenizer, stops=stops, trim=LeadingSpace() if header else None)

    calls: list[GenerateCall] = []
    may_end_early = bool(stops) and _rows(options) == 1

    def placed(index: int, prompt: str) -> int:
        field = f"prompts.{index}"
        text = fewshot.laid_out(header, prompt, field) if header else prompt
        ids = _encode(text, field, model, limits)
        call = GenerateCall(
            model=model.generator,
            version=model.manifest.version,
            inputs={
                SOURCE_IDS if model.reads_source else PROMPT_IDS: np.array(ids, dtype=np.int64)
            },
            options=options,
            read=read if may_end_early else None,
        )
        calls.append(call)
        return len(calls) - 1

    places = attempt_each(request.prompts, placed)
    return GeneratePlan(
        model,
        places,
        tuple(calls),
        read,
        model.generation.length_penalty
        if request.length_penalty is None
        else request.length_penalty,
        with_alternatives=request.n is not None,
        with_logprobs=request.logprobs is not None,
    )


def _rows(options: Overrides) -> int:
    """Rows that a call takes in the engine; only one can be watched while it grows."""
    if options.do_sample:
        return options.best_of or options.num_return_sequences or 1
    return options.num_beams or 1


def _encode(text: str, field: str, model: LoadedModel, limits: TaskLimits) -> list[int]:
    """Ids of a text; of an empty one the token that texts begin with, where the model has one.

    Raises:
        InvalidRequest: nothing to begin with.
        TooLong: more than the gateway or the model takes, or no room left for an answer.
    """
    ids = model.encode(text, field, limits) or _beginning(model)
    if not ids and (model.reads_source or not model.generation.decoder_start_ids):
        raise InvalidRequest(f"{field} is empty: there is nothing to continue", field=field)
    longest, limit = min(_bounds(model, limits))
    if len(ids) > longest:
        raise TooLong(f"{field} has {len(ids)} tokens, {limit}: shorten it", field=field)
    return ids


def _bounds(model: LoadedModel, limits: TaskLimits) -> Iterator[tuple[int, str]]:
    """Tokens that a prompt may have, and who says so."""
    yield limits.max_input_tokens, f"at most {limits.max_input_tokens} are taken"
    own = model.manifest.limits
    if own.max_input_tokens is not None:
        yield own.max_input_tokens, f"{model.name} takes at most {own.max_input_tokens}"
    if own.max_total_tokens is not None and not model.reads_source:
        left = own.max_total_tokens - len(model.generation.decoder_start_ids)
        yield left - 1, f"{model.name} holds {left} with its answer"


def _beginning(model: LoadedModel) -> list[int]:
    """What a decoder without a source starts from when it is told nothing."""
    spec = model.manifest.tokenizer
    if model.reads_source or model.generation.decoder_start_ids or not spec:
        return []
    return [] if spec.bos_token_id is None else [spec.bos_token_id]


def _ranking(score: float | None) -> float:
    return -math.inf if score is None else score


def _score(tokens: Tokens, length_penalty: float) -> float | None:
    """As the engine scores a whole answer; None where it was not asked to tell probabilities."""
    if not tokens.log_probs:
        return None
    return sum(tokens.log_probs) / math.pow(len(tokens.ids), length_penalty)
