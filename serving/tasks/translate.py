"""`translate`: texts to sentences, one generator call each, and back to texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.codec import SOURCE_IDS
from serving.errors import InvalidRequest, ServingError, TooLong
from serving.planning.alignment import block_diagonal, check_size, weights_of
from serving.planning.calls import Call, GenerateCall, Generated, Outcome
from serving.planning.canaries import generator_canary
from serving.planning.image_inputs import ImageInput
from serving.planning.incremental_text import IncrementalText
from serving.planning.items import attempt_each, generated_of, in_place, unwrap, usage_of
from serving.planning.limits import TaskLimits
from serving.planning.loaded_model import LoadedModel
from serving.planning.needs import GENERATOR, TOKENIZER
from serving.planning.overrides import beam_overrides
from serving.planning.served_task import Plan, Section, ServedTask
from serving.planning.streaming import Segment, StreamedItem, Streaming, check_stream
from serving.processing.sentences import Paragraph, split_sentences
from triptych.messages import Alternative
from triptych.tasks import translate as declared
from triptych.tasks.translate import Alignment, TranslateRequest, TranslateResponse, Translation

_PREFIX = re.compile(r"\s*(>>[^<\s]*<<)\s*")


class TranslateSection(Section):
    """Languages of a translator."""

    languages: tuple[tuple[str, str], ...] = ()
    """(source, target) pairs, ISO 639-1; empty where the checkpoint does not declare them."""


@dataclass(frozen=True)
class Text:
    """One text of the request: its paragraph and its sentences' calls, [first, last)."""

    paragraph: Paragraph
    first: int
    last: int


@dataclass(frozen=True)
class TranslatePlan(Plan):
    """One call for each sentence."""

    model: LoadedModel
    texts: tuple[Text | ServingError, ...]
    calls: tuple[GenerateCall, ...]
    with_alternatives: bool
    with_alignment: bool

    def finish(self, outcomes: Sequence[Outcome]) -> TranslateResponse:
        """The translations."""

        def translated(index: int, text: Text | ServingError) -> Translation:
            return self._translation(index, unwrap(text), outcomes)

        results = attempt_each(self.texts, translated)
        return TranslateResponse(
            model=self.model.name, data=in_place(results, Translation), usage=usage_of(outcomes)
        )

    def streaming(self) -> Streaming:
        """Sentences in order, each as it is translated."""
        return Streaming([self._streamed(text) for text in self.texts], self.calls)

    def _streamed(self, text: Text | ServingError) -> StreamedItem | ServingError:
        if isinstance(text, ServingError):
            return text
        gaps = text.paragraph.gaps
        segments = tuple(
            Segment(call, self._read, before)
            for call, before in zip(range(text.first, text.last), gaps[:-1], strict=True)
        )
        return StreamedItem(segments, after=gaps[-1])

    def _read(self) -> IncrementalText:
        return IncrementalText(self.model.tokenizer)

    def _translation(self, index: int, text: Text, outcomes: Sequence[Outcome]) -> Translation:
        sentences = [generated_of(outcome) for outcome in outcomes[text.first : text.last]]
        decode = self.model.tokenizer.decode
        # The k-th alternative of a text is joined from the k-th hypotheses of its sentences.
        hypotheses = [
            Alternative(
                text=text.paragraph.join([decode(found.sequences[rank]) for found in sentences]),
                score=sum(found.scores[rank] for found in sentences),
            )
            for rank in range(min(len(found.sequences) for found in sentences))
        ]
        return Translation(
            index=index,
            text=hypotheses[0].text,
            score=hypotheses[0].score,
            alternatives=hypotheses if self.with_alternatives else None,
            alignment=self._alignment(text, sentences) if self.with_alignment else None,
        )

    def _alignment(self, text: Text, sentences: Sequence[Generated]) -> Alignment:
        sources = [call.inputs[SOURCE_IDS] for call in self.calls[text.first : text.last]]
        pieces = self.model.tokenizer.pieces
        return Alignment(
            source_tokens=[p for ids in sources for p in pieces(ids.tolist(), of_source=True)],
            target_tokens=[p for found in sentences for p in pieces(found.sequences[0])],
            weights=block_diagonal(
                [
                    weights_of(found, columns=len(ids))
                    for found, ids in zip(sentences, sources, strict=True)
                ]
            ),
        )


class Translate(ServedTask[TranslateRequest, TranslateSection]):
    """Paragraphs are split into sentences and rejoined."""

    declaration = declared.TASK
    section = TranslateSection
    needs = (GENERATOR, TOKENIZER)

    def prepare(
        self,
        request: TranslateRequest,
        images: Sequence[ImageInput],
        model: LoadedModel,
        limits: TaskLimits,
    ) -> TranslatePlan:
        """One call for each sentence.

        Raises:
            InvalidRequest: too many texts, more alternatives than beams, unknown target language.
            ServingError: no text can be translated; the first one's error.
        """
        limits.check_batch(len(request.texts), "texts")
        options = beam_overrides(
            model,
            num_beams=request.num_beams,
            alternatives=request.alternatives,
            stream=request.stream,
            length_penalty=request.length_penalty,
            return_alignment=request.return_alignment or None,
        )
        if request.return_alignment:
            model.alignment("tokens", "return_alignment")
        check_stream(
            request.stream,
            alternatives=request.alternatives,
            return_alignment=options.return_alignment,
        )
        prefix = _target_prefix(request.target, model)
        calls: list[GenerateCall] = []

        def planned(index: int, text: str) -> Text:
            paragraph, sentences = _encode(text, prefix, f"texts.{index}", model, limits)
            first = len(calls)
            for ids in sentences:
                inputs = {SOURCE_IDS: np.array(ids, dtype=np.int64)}
                calls.append(model.generate_call(inputs, options))
            return Text(paragraph, first, len(calls))

        texts = attempt_each(request.texts, planned)
        if request.return_alignment:
            check_size([call.tokens for call in calls])
        return TranslatePlan(
            model,
            texts,
            tuple(calls),
            with_alternatives=request.alternatives is not None,
            with_alignment=bool(request.return_alignment),
        )

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        """One token."""
        return [generator_canary(model)]

    def accepts(self, request: TranslateRequest, model: LoadedModel) -> bool:
        """Whether the model translates that pair; one without declared languages takes any."""
        pairs = self.section_of(model).languages
        source, target = request.source, request.target
        return not pairs or any(source in (None, a) and target in (None, b) for a, b in pairs)

    def refusal(self, request: TranslateRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        """Lists the language pairs."""
        found = {pair for model in models for pair in self.section_of(model).languages}
        pairs = ", ".join(sorted(f"{source}-{target}" for source, target in found))
        message = (
            f"{models[0].name} translates {pairs} only"
            if request.model
            else f"no model translates between those languages; supported are: {pairs}"
        )
        return InvalidRequest(message, field="source" if request.target is None else "target")

    def details(self, model: LoadedModel) -> Mapping[str, Any]:
        """Language pairs."""
        return {"languages": [list(pair) for pair in self.section_of(model).languages]}

    def size(self, request: TranslateRequest) -> int:
        """Characters."""
        return sum(map(len, request.texts))


def _encode(
    text: str, prefix: str, field: str, model: LoadedModel, limits: TaskLimits
) -> tuple[Paragraph, list[list[int]]]:
    """The text's paragraph and its sentences' ids.

    Raises:
        InvalidRequest: nothing to translate, or no target language where the model needs one.
        TooLong: a sentence is longer than the model takes, or the text than the gateway takes.
    """
    prefix, text = _addressed(text, prefix, model)
    paragraph = split_sentences(text)
    if not paragraph.sentences:
        raise InvalidRequest(f"{field} is empty: there is nothing to translate", field=field)
    if _prefixes(model) and not prefix:
        raise InvalidRequest(
            f"{model.name} translates into several languages: give target", field="target"
        )
    ids, total = [], 0
    for sentence in paragraph.sentences:
        ids.append(model.encode(f"{prefix} {sentence}" if prefix else sentence, field, limits))
        model.check_length(len(ids[-1]), field, what=f" (sentence {len(ids)})")
        total += len(ids[-1])
        if total > limits.max_input_tokens:
            raise TooLong(
                f"{field} has more than {limits.max_input_tokens} tokens "
                f"({total} in its first {len(ids)} of {len(paragraph.sentences)} sentences): "
                "split it into several texts",
                field=field,
            )
    return paragraph, ids


def _prefixes(model: LoadedModel) -> tuple[str, ...]:
    tokenizer = model.manifest.tokenizer
    return tokenizer.target_prefixes if tokenizer else ()


def _target_prefix(target: str | None, model: LoadedModel) -> str:
    """`>>xx<<` for the requested language, empty for models of one language."""
    prefixes = _prefixes(model)
    if not prefixes or target is None:
        return ""
    prefix = f">>{target}<<"
    if prefix not in prefixes:
        known = ", ".join(sorted(known.strip("><") for known in prefixes))
        raise InvalidRequest(
            f"{model.name} does not translate into that language; supported are: {known}",
            field="target",
        )
    return prefix


def _addressed(text: str, prefix: str, model: LoadedModel) -> tuple[str, str]:
    """(prefix, rest): a `>>xx<<` at the beginning of the text is for all its sentences."""
    found = _PREFIX.match(text)
    if found and found.group(1) in _prefixes(model):
        return found.group(1), text[found.end() :]
    return prefix, text


TASK = Translate()
