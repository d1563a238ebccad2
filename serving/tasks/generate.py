"""`generate`: one call for each prompt, laid out with its examples, until its end or a stop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from serving.codec import PROMPT_IDS, SOURCE_IDS
from serving.errors import InvalidRequest, TooLong
from serving.generation import Overrides
from serving.planning import fewshot
from serving.planning.calls import Array, Call, GenerateCall
from serving.planning.canaries import generator_canary
from serving.planning.continuation import ContinuationPlan, Echo, rows_of
from serving.planning.image_inputs import ImageInput
from serving.planning.incremental_text import IncrementalText
from serving.planning.items import attempt_each
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel
from serving.planning.needs import GENERATOR, TOKENIZER
from serving.planning.overrides import OutputOptions, sampling_overrides
from serving.planning.served_task import Section, ServedTask
from serving.processing.detokenizer import LeadingSpace
from triptych.tasks import generate as declared
from triptych.tasks.generate import GenerateRequest, GenerateResponse


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
    ) -> ContinuationPlan:
        """One call for each prompt.

        Raises:
            InvalidRequest: too many prompts, mutually exclusive fields, an unusable example.
            ServingError: no prompt can be continued; the first one's error.
        """
        limits.check_batch(len(request.prompts), "prompts")
        # An encoder reads its task in front of the text ("summarize: …"), not in a layout.
        is_plain = model.reads_source and not request.examples
        before = fewshot.before(request.instruction) if is_plain else ""
        header = "" if is_plain else fewshot.header(request.instruction, request.examples or ())
        outputs = OutputOptions(
            n=request.n,
            stops=tuple(request.stop or ([fewshot.STOP] if header else ())),
            logprobs=request.logprobs,
            early_stopping=request.early_stopping,
            stream=request.stream,
        )
        options = sampling_overrides(request, outputs, model, limits)
        _check_echo(request, model)

        def read() -> IncrementalText:
            trim = LeadingSpace() if header else None
            return IncrementalText(model.tokenizer, stops=outputs.stops, trim=trim)

        calls: list[GenerateCall] = []
        echoes: dict[int, Echo] = {}
        may_end_early = bool(outputs.stops) and rows_of(options) == 1

        def numbered(index: int, prompt: str) -> int:
            field = f"prompts.{index}"
            text = fewshot.laid_out(header, prompt, field) if header else before + prompt
            ids = np.array(_encode(text, field, model, limits), dtype=np.int64)
            name = SOURCE_IDS if model.reads_source else PROMPT_IDS
            calls.append(model.generate_call({name: ids}, options, read if may_end_early else None))
            number = len(calls) - 1
            if request.echo:
                scoring = _scoring_call(ids, request.logprobs, model)
                calls.extend(filter(None, [scoring]))
                scored = tuple(ids.tolist()) if request.logprobs is not None else ()
                echoes[index] = Echo(text, scored, number + 1 if scoring else None)
            return number

        numbers = attempt_each(request.prompts, numbered)
        penalty = request.length_penalty
        return ContinuationPlan(
            GenerateResponse,
            model,
            numbers,
            tuple(calls),
            read,
            model.generation.length_penalty if penalty is None else penalty,
            with_alternatives=request.n is not None,
            with_logprobs=request.logprobs is not None,
            echoes=echoes,
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
        """Characters; instruction and examples are read again for each prompt."""
        examples = (text for one in request.examples or () for text in (one.input, one.output))
        header = sum(map(len, (*examples, request.instruction or "")))
        return sum(map(len, request.prompts)) + header * len(request.prompts)


def _check_echo(request: GenerateRequest, model: LoadedModel) -> None:
    """Raises InvalidRequest where a prompt cannot be returned."""
    if request.echo and request.stream:
        raise InvalidRequest("a stream does not carry the prompt: leave echo out", field="echo")
    if request.echo and model.reads_source:
        raise InvalidRequest(
            f"{model.name} reads prompts with its encoder and does not score them: leave echo out",
            field="echo",
        )


def _scoring_call(ids: Array, logprobs: int | None, model: LoadedModel) -> GenerateCall | None:
    """The call that takes a prompt's tokens one by one, after the first; None without scores."""
    given = tuple(ids[1:].tolist())
    if logprobs is None or not given:
        return None
    options = Overrides(
        num_beams=1,
        num_return_sequences=1,
        do_sample=False,
        max_new_tokens=len(given),
        top_log_probs=logprobs,
        given_ids=given,
    )
    return model.generate_call({PROMPT_IDS: ids[:1]}, options)


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


TASK = Generate()
