"""`score`: given targets as outputs of a generator, one call each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inference.engine.codec import PROMPT_IDS, SOURCE_IDS
from inference.errors import InvalidRequest, ServingError, TooLong
from inference.processing.prepared_image import PreparedImage
from inference.tasks.caption import TASK as CAPTION
from inference.tasks.caption import header_of, image_call, prompt_ids
from inference.tasks.generation.continuation import given_tokens, token_logprobs
from inference.tasks.shared.image_inputs import ImageInput, prepare_images
from inference.tasks.shared.loaded_model import LoadedModel, check_is_not_blank
from inference.tasks.shared.model_calls import (
    Array,
    Call,
    GenerateCall,
    Outcome,
    answer_each,
    attempt_each,
    finished_of,
    unwrap,
    usage_of,
)
from inference.tasks.shared.needs import GENERATOR, ONE_LANGUAGE, TOKENIZER
from inference.tasks.shared.served_task import Plan, ServedTask, TaskConfig
from triptych.task import IMAGES
from triptych.tasks import score as declared
from triptych.tasks.score import Score, ScoreRequest, ScoreResponse


class ScoreSection(TaskConfig):
    """The task needs no data of the model."""


@dataclass(frozen=True)
class ScorePlan(Plan):
    """One call for each target."""

    model: LoadedModel
    numbers: tuple[int | ServingError, ...]
    calls: tuple[GenerateCall, ...]
    with_logprobs: bool

    def finish(self, outcomes: Sequence[Outcome]) -> ScoreResponse:
        def score(index: int, number: int) -> Score:
            best = finished_of(outcomes[number]).best
            return Score(
                index=index,
                score=sum(best.log_probs),
                tokens=len(best.token_ids),
                logprobs=token_logprobs(best.tokens, self.model) if self.with_logprobs else None,
            )

        data = answer_each(self.numbers, score, Score)
        return ScoreResponse(model=self.model.name, data=data, usage=usage_of(outcomes))


class ScoreTask(ServedTask[ScoreRequest, ScoreSection]):
    """Given tokens are taken one by one, as those of `echo`: they share batches with all others."""

    declaration = declared.TASK
    section = ScoreSection
    is_implied = True
    needs = (GENERATOR, TOKENIZER, ONE_LANGUAGE)

    def prepare(
        self, request: ScoreRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> ScorePlan:
        targets = request.targets
        model.task_limits.check_batch(len(targets), "targets")
        prepared = prepare_images(images, model, self.header(request, model)) if images else ()
        for name, given in (("texts", request.texts or ()), (IMAGES, prepared)):
            if len(given) not in (0, 1, len(targets)):
                raise InvalidRequest(
                    f"{name} holds {len(given)} for {len(targets)} targets: give one for all of "
                    "them, or one for each",
                    field=name,
                )
        calls: list[GenerateCall] = []

        def add_call(index: int, target: str) -> int:
            place = index if len(request.texts or ()) > 1 else 0
            text = request.texts[place] if request.texts else ""
            fields = f"targets.{index}", f"texts.{place}"
            reader = _Reader(model, *fields, request.logprobs or 0)
            ends = request.with_end
            if prepared:
                image = unwrap(prepared[index if len(prepared) > 1 else 0])
                calls.append(reader.caption(image, text, target, ends))
            elif model.reads_source:
                source = np.array(reader.source(text), dtype=np.int64)
                calls.append(reader.call({SOURCE_IDS: source}, reader.output(target, ends)))
            else:
                before, given = reader.continuation(text, target, ends)
                prompt = {PROMPT_IDS: np.array(before, dtype=np.int64)} if before else {}
                calls.append(reader.call(prompt, given))
            return len(calls) - 1

        numbers = attempt_each(targets, add_call, calls)
        return ScorePlan(model, numbers, tuple(calls), with_logprobs=request.logprobs is not None)

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        """No call: other tasks of the generator have a canary."""
        return ()

    def header(self, request: ScoreRequest, model: LoadedModel) -> str | None:
        if not (request.images and _reads_images(model)):
            return None
        texts = request.texts or [""]
        if (header := header_of(texts[0], "texts", model)) is not None and len(texts) > 1:
            raise InvalidRequest(
                f"{model.name} reads a question in the image: give one text for all targets",
                field="texts",
            )
        return header

    def accepts(self, request: ScoreRequest, model: LoadedModel) -> bool:
        """Whether what is given is read, and what the model cannot do without is given."""
        if request.images:
            return _reads_images(model) and (_reads_texts(model) or not request.texts)
        return not _needs_image(model) and (bool(request.texts) or not model.reads_source)

    def refusal(self, request: ScoreRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        def read_by(model: LoadedModel) -> str:
            needed = IMAGES if _needs_image(model) else "texts" if model.reads_source else ""
            others = [name for name in self.inputs(model)[1:] if name != needed]
            return " and, where given, ".join(filter(None, [needed, *others]))

        listed = ", ".join(f"{model.name} reads {read_by(model)}" for model in models)
        field = IMAGES if any(map(_needs_image, models)) != bool(request.images) else "texts"
        return InvalidRequest(f"give what the model reads: {listed}", field=field)

    def inputs(self, model: LoadedModel) -> Sequence[str]:
        texts, images = _reads_texts(model), _reads_images(model)
        return ("targets", *["texts"] * texts, *[IMAGES] * images)

    def size(self, request: ScoreRequest) -> int | None:
        """Characters; a text for all targets is read for each. None with images."""
        if request.images:
            return None
        texts = request.texts or []
        repeated = len(request.targets) if len(texts) == 1 else 1
        return sum(map(len, request.targets)) + repeated * sum(map(len, texts))


@dataclass(frozen=True)
class _Reader:
    """Reads one target and its text; the fields are named in errors."""

    model: LoadedModel
    field: str
    text_field: str
    logprobs: int

    def source(self, text: str) -> list[int]:
        """Encoder tokens."""
        check_is_not_blank(text, self.text_field)
        ids = self.model.encode(text, self.text_field)
        self.model.check_has_no_image(ids, self.text_field)
        self.model.check_length(len(ids), self.text_field)
        return ids

    def caption(
        self, image: PreparedImage, text: str, target: str, with_end: bool | None
    ) -> GenerateCall:
        """The call that takes a target as the answer to an image and its prompt."""
        section, layout = CAPTION.section_of(self.model), image.layout
        written = None if header_of(text, self.text_field, self.model) else text

        def read(prompt: str | None, field: str) -> list[int]:
            return prompt_ids(prompt, field, section, self.model, layout)

        ids, given = read(written, self.text_field), self.output(target, with_end)
        if written and not (section.answers or self.model.reads_source):
            whole = read(written + target, self.field)
            if len(whole) > len(ids) and whole[: len(ids)] == ids:
                given = [*whole[len(ids) :], *self._end(with_end is not False)]
        instruction = section.instruction(written, self.text_field, self.model)
        return self.call(image_call(ids, image, instruction, self.model), given)

    def output(self, target: str, with_end: bool | None) -> list[int]:
        """Tokens of a whole output: the forced first one, the text, the end."""
        self.model.check_characters(len(target), self.field)
        ids = self.model.tokenizer.encode_output(target)
        if ids is None:
            raise InvalidRequest(
                f"{self.field}: the vocabulary of {self.model.name} cannot write it",
                field=self.field,
            )
        self.model.check_has_no_image(ids, self.field)
        first = self.model.generation.forced_bos_token_id
        before = [] if first is None else [first]
        return [*before, *ids, *self._end(with_end is not False)]

    def continuation(
        self, text: str, target: str, with_end: bool | None
    ) -> tuple[list[int], list[int]]:
        """Tokens before a target, and its own; text and target are tokenised as one."""
        whole = self._prompt(text + target, self.field)
        before = self._prompt(text, self.text_field) if text else []
        place = len(before)
        first, given = whole[:place], [*whole[place:], *self._end(with_end is True)]
        if not first:
            first = self.model.beginning
            if not first and not self.model.generation.decoder_start_ids:
                first, given = given[:1], given[1:]  # nothing is before the first token
        if text and target and not whole[place:]:
            raise InvalidRequest(
                f"{self.field} has no token of its own behind {self.text_field}: begin it with a "
                "space",
                field=self.field,
            )
        return first, given

    def call(self, inputs: dict[str, Array], given: list[int]) -> GenerateCall:
        """The call that takes the target's tokens.

        Raises:
            InvalidRequest: there are none.
            TooLong: more than the model holds.
        """
        if not given:
            raise InvalidRequest(f"{self.field} is empty: it has no tokens", field=self.field)
        held = inputs.get(PROMPT_IDS, np.zeros(0)).size
        held += len(self.model.generation.decoder_start_ids)
        most = self.model.manifest.limits.max_total_tokens
        if most is not None and held + len(given) > most:
            raise TooLong(
                f"{self.field} has {len(given)} tokens behind {held}, {self.model.name} holds "
                f"{most}: shorten it",
                field=self.field,
            )
        return self.model.generate_call(inputs, given_tokens(given, self.logprobs))

    def _prompt(self, text: str, field: str) -> list[int]:
        """Tokens of a text without those that the tokenizer puts behind it."""
        ids = self.model.encode(text, field)
        self.model.check_has_no_image(ids, field)
        own = self.model.encode(text, field, special=False)
        starts = range(len(ids) - len(own), -1, -1)
        first = next((start for start in starts if ids[start : start + len(own)] == own), 0)
        return ids[: first + len(own)]

    def _end(self, is_wanted: bool) -> list[int]:
        return list(self.model.generation.eos_token_ids[:1]) if is_wanted else []


def _reads_images(model: LoadedModel) -> bool:
    """Whether targets may be answers about an image."""
    return CAPTION.name in model.sections


def _needs_image(model: LoadedModel) -> bool:
    return _reads_images(model) and not model.manifest.takes_image_lists


def _reads_texts(model: LoadedModel) -> bool:
    """Whether a text may stand before targets: alone, or as the prompt of their image."""
    if not _needs_image(model):
        return True
    patches = model.image.patches
    return CAPTION.section_of(model).images is not None or bool(patches and patches.has_header)


TASK = ScoreTask()
