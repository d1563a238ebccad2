"""`generate`: one call for each prompt, laid out with its examples, until its end or a stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from serving.codec import PROMPT_IDS, SOURCE_IDS
from serving.errors import InvalidRequest, ServingError, TooLong
from serving.generation import FinishReason, Overrides
from serving.planning import fewshot
from serving.planning.calls import Call, GenerateCall, Generated, Outcome
from serving.planning.canaries import generator_canary
from serving.planning.image_inputs import ImageInput
from serving.planning.incremental_text import IncrementalText, Tokens
from serving.planning.items import attempt_each, generated_of, in_place, unwrap, usage_of
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel
from serving.planning.needs import GENERATOR, TOKENIZER
from serving.planning.overrides import OutputOptions, sampling_overrides
from serving.planning.served_task import Plan, Section, ServedTask
from serving.planning.streaming import Segment, StreamedItem, Streaming
from serving.processing.detokenizer import LeadingSpace
from triptych.messages import TokenLogprob, TopToken
from triptych.tasks import generate as declared
from triptych.tasks.generate import Continuation, GenerateRequest, GenerateResponse, Generation


@dataclass(frozen=True)
class GeneratePlan(Plan):
    """One call for each prompt."""

    model: LoadedModel
    numbers: tuple[int | ServingError, ...]
    """For each prompt its call's number, or its error."""
    calls: tuple[GenerateCall, ...]
    read: Callable[[], IncrementalText]
    length_penalty: float
    with_alternatives: bool
    with_logprobs: bool

    def finish(self, outcomes: Sequence[Outcome]) -> GenerateResponse:
        """The outputs, best first."""
        completion_tokens = 0

        def generated(index: int, number: int | ServingError) -> Generation:
            nonlocal completion_tokens
            outcome = generated_of(outcomes[unwrap(number)])
            found = [self._continuation(outcome, rank) for rank in range(len(outcome.sequences))]
            completion_tokens += sum(tokens for _, tokens in found)
            # A stop string may change the order, and samples arrive in the order drawn.
            found.sort(key=lambda output: _ranking(output[0].score), reverse=True)
            best = found[0][0]
            return Generation(
                index=index,
                **{name: getattr(best, name) for name in type(best).model_fields},
                alternatives=[output for output, _ in found] if self.with_alternatives else None,
            )

        results = attempt_each(self.numbers, generated)
        usage = usage_of(outcomes).model_copy(update={"completion_tokens": completion_tokens})
        return GenerateResponse(
            model=self.model.name, data=in_place(results, Generation), usage=usage
        )

    def streaming(self) -> Streaming:
        """Each output as it is generated."""
        items = [
            number
            if isinstance(number, ServingError)
            else StreamedItem((Segment(number, self.read),))
            for number in self.numbers
        ]
        return Streaming(items, self.calls, self._logprobs)

    def _continuation(self, outcome: Generated, rank: int) -> tuple[Continuation, int]:
        """One hypothesis, cut at a stop string, and the number of tokens that remain of it."""
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
        output = Continuation(
            text=text, finish_reason=reason, score=score, logprobs=self._logprobs(kept)
        )
        return output, live.length

    def _logprobs(self, tokens: Tokens) -> list[TokenLogprob] | None:
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


class Generate(ServedTask[GenerateRequest, Section]):
    """Text generation."""

    declaration = declared.TASK
    section = Section
    needs = (GENERATOR, TOKENIZER)

    def prepare(
        self,
        request: GenerateRequest,
        images: Sequence[ImageInput],
        model: LoadedModel,
        limits: TaskLimits,
    ) -> GeneratePlan:
        """One call for each prompt.

        Raises:
            InvalidRequest: too many prompts, mutually exclusive fields, an unusable example.
            ServingError: no prompt can be continued; the first one's error.
        """
        limits.check_batch(len(request.prompts), "prompts")
        header = fewshot.header(request.instruction, request.examples or ())
        outputs = OutputOptions(
            n=request.n,
            stops=tuple(request.stop or ([fewshot.STOP] if header else ())),
            logprobs=request.logprobs,
            early_stopping=request.early_stopping,
            stream=request.stream,
        )
        options = sampling_overrides(request, outputs, model, limits)

        def read() -> IncrementalText:
            trim = LeadingSpace() if header else None
            return IncrementalText(model.tokenizer, stops=outputs.stops, trim=trim)

        calls: list[GenerateCall] = []
        may_end_early = bool(outputs.stops) and _rows(options) == 1

        def numbered(index: int, prompt: str) -> int:
            field = f"prompts.{index}"
            text = fewshot.laid_out(header, prompt, field) if header else prompt
            ids = np.array(_encode(text, field, model, limits), dtype=np.int64)
            name = SOURCE_IDS if model.reads_source else PROMPT_IDS
            calls.append(model.generate_call({name: ids}, options, read if may_end_early else None))
            return len(calls) - 1

        numbers = attempt_each(request.prompts, numbered)
        penalty = request.length_penalty
        return GeneratePlan(
            model,
            numbers,
            tuple(calls),
            read,
            model.generation.length_penalty if penalty is None else penalty,
            with_alternatives=request.n is not None,
            with_logprobs=request.logprobs is not None,
        )

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        """One token."""
        return [generator_canary(model)]

    def limits(self, limits: TaskLimits, model: LoadedModel) -> Mapping[str, int]:
        """Outputs and stop strings."""
        return {
            "max_best_of": limits.max_best_of,
            "max_stop_sequences": limits.max_stop_sequences,
        }

    def size(self, request: GenerateRequest) -> int:
        """Characters."""
        examples = (text for one in request.examples or () for text in (one.input, one.output))
        return sum(map(len, (*request.prompts, *examples, request.instruction or "")))


def _rows(options: Overrides) -> int:
    """Rows of a call in the engine; only a single one can be read while it grows."""
    if options.do_sample:
        return options.best_of or options.num_return_sequences or 1
    return options.num_beams or 1


def _encode(text: str, field: str, model: LoadedModel, limits: TaskLimits) -> list[int]:
    """Ids of a text; of an empty one the beginning-of-text token, where the model has one.

    Raises:
        InvalidRequest: nothing to begin with.
        TooLong: more than the gateway or the model takes, or no room left for an output.
    """
    ids = model.encode(text, field, limits) or _beginning(model)
    if not ids and (model.reads_source or not model.generation.decoder_start_ids):
        raise InvalidRequest(f"{field} is empty: there is nothing to continue", field=field)
    longest, limit = min(model.prompt_bounds(limits))
    if len(ids) > longest:
        raise TooLong(f"{field} has {len(ids)} tokens, {limit}: shorten it", field=field)
    return ids


def _beginning(model: LoadedModel) -> list[int]:
    """First token of a decoder that has neither a source nor a prompt."""
    spec = model.manifest.tokenizer
    if model.reads_source or model.generation.decoder_start_ids or not spec:
        return []
    return [] if spec.bos_token_id is None else [spec.bos_token_id]


def _ranking(score: float | None) -> float:
    return -math.inf if score is None else score


def _score(tokens: Tokens, length_penalty: float) -> float | None:
    """The engine's score of a whole output; None where it returned no log-probabilities."""
    if not tokens.log_probs:
        return None
    return sum(tokens.log_probs) / math.pow(len(tokens.ids), length_penalty)


TASK = Generate()
