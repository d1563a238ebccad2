"""`translate`: texts to sentences, one generator call each, and back to texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ConfigDict

from inference.engine.codec import SOURCE_IDS
from inference.errors import InvalidRequest, ServingError
from inference.generation import FinishReason
from inference.processing.sentences import Paragraph, is_blank
from inference.processing.terms import StoredTerms, TermIndex
from inference.sequences import Finished
from inference.tasks.generation.overrides import beam_overrides, check_stream, is_greedy_stream
from inference.tasks.shared.alignment import block_diagonal, check_size, weights_of
from inference.tasks.shared.canaries import generator_canary
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.items import answer_each, attempt_each, finished_of, map_valid, usage_of
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.model_calls import Call, GenerateCall, Outcome, Outcomes
from inference.tasks.shared.needs import GENERATOR, TOKENIZER
from inference.tasks.shared.served_task import Plan, ServedTask
from inference.tasks.shared.streaming import (
    AnySegment,
    Segment,
    StreamedItem,
    Streaming,
    WholeSegment,
)
from inference.tasks.translation.languages import (
    LanguagePairs,
    TranslateSection,
    directions_of,
    pair_refusal,
)
from inference.tasks.translation.sentence_terms import (
    GlossaryCalls,
    TermSpeller,
    aligns,
    with_terms,
)
from inference.tasks.translation.source_sentences import (
    MostTokens,
    SourceText,
    divide,
    encoded_sentences,
    split_target_prefix,
)
from triptych.messages import Alternative, Response, Usage
from triptych.tasks import translate as declared
from triptych.tasks.translate import Alignment, TranslateRequest, TranslateResponse, Translation


class StoredTermsRequest(TranslateRequest):
    """A request with the stored terms that it refers to."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    stored: StoredTerms


@dataclass(frozen=True)
class Sentence:
    """A sentence of the request.

    Attributes:
        call: Number of its first call, which has its source tokens.
        termed: Its calls, if it has terms.
    """

    call: int
    termed: GlossaryCalls | None = None

    def result(self, outcomes: Outcomes, model: LoadedModel) -> Finished:
        """Its translations.

        Raises:
            ServingError: its call failed.
        """
        if self.termed is not None:
            return self.termed.result(outcomes, model)
        finished, tokenizer = finished_of(outcomes[self.call]), model.tokenizer
        texts = [tokenizer.decode(one.token_ids) for one in finished.hypotheses]
        best = finished.best
        pieces = () if best.alignment is None else tokenizer.pieces(best.token_ids)
        return finished.written(texts, pieces, best.alignment)


@dataclass(frozen=True)
class Text:
    """One text of the request.

    Attributes:
        paragraph: Its sentences and the text between them.
        sentences: Each of them.
        divided: Number of its sentences that are translated in parts.
    """

    paragraph: Paragraph
    sentences: tuple[Sentence, ...]
    divided: int


@dataclass(frozen=True)
class TranslatePlan(Plan):
    """One call for each sentence, and two for some with terms."""

    request: TranslateRequest
    model: LoadedModel
    texts: tuple[Text | ServingError, ...]
    calls: tuple[GenerateCall, ...]

    def finish(self, outcomes: Sequence[Outcome]) -> TranslateResponse:
        def translated(index: int, text: Text) -> Translation:
            return self._translation(index, text, outcomes)

        data = answer_each(self.texts, translated, Translation)
        return TranslateResponse(model=self.model.name, data=data, usage=usage_of(outcomes))

    def streaming(self) -> Streaming:
        """Sentences in order: plain ones as they are generated, those with terms when complete."""
        items = map_valid(self.texts, self._streamed)
        is_greedy = is_greedy_stream(self.request, self.calls, self.model)
        return Streaming(items, self.calls, is_greedy=is_greedy)

    def _streamed(self, text: Text) -> StreamedItem:
        gaps = text.paragraph.gaps
        segments = tuple(map(self._segment, text.sentences, gaps))
        return StreamedItem(segments, after=gaps[-1])

    def _segment(self, sentence: Sentence, before: str) -> AnySegment:
        termed = sentence.termed
        if termed is None:
            return Segment(sentence.call, self._read, before)

        def result(outcomes: Outcomes) -> tuple[str, str]:
            found = termed.result(outcomes, self.model)
            return found.best.text, found.best.finish_reason

        return WholeSegment(termed.calls, result, before)

    def _read(self) -> IncrementalText:
        return IncrementalText(self.model.tokenizer)

    def _translation(self, index: int, text: Text, outcomes: Sequence[Outcome]) -> Translation:
        found = [sentence.result(outcomes, self.model) for sentence in text.sentences]
        # The k-th alternative of a text is joined from the k-th hypotheses of its sentences.
        hypotheses = [
            Alternative(
                text=text.paragraph.join([one.hypotheses[rank].text for one in found]),
                score=sum(one.hypotheses[rank].score for one in found),
                finish_reason=FinishReason.of_all(
                    one.hypotheses[rank].finish_reason for one in found
                ),
            )
            for rank in range(min(len(one.hypotheses) for one in found))
        ]
        return Translation(
            index=index,
            text=hypotheses[0].text,
            finish_reason=hypotheses[0].finish_reason,
            score=hypotheses[0].score,
            divided_sentences=text.divided or None,
            alternatives=hypotheses if self.request.n else None,
            alignment=self._alignment(text, found) if self.request.return_attention else None,
        )

    def _alignment(self, text: Text, found: Sequence[Finished]) -> Alignment:
        sources = [self.calls[sentence.call].inputs[SOURCE_IDS] for sentence in text.sentences]
        pieces = self.model.tokenizer.pieces
        return Alignment(
            source_tokens=[p for ids in sources for p in pieces(ids.tolist(), of_source=True)],
            target_tokens=[piece for one in found for piece in one.best.pieces],
            weights=block_diagonal(
                [
                    weights_of(one.best.alignment, rows=len(one.best.pieces), columns=len(ids))
                    for one, ids in zip(found, sources, strict=True)
                ]
            ),
        )


class Translate(ServedTask[TranslateRequest, TranslateSection]):
    """Paragraphs are split into sentences and rejoined."""

    declaration = declared.TASK
    section = TranslateSection
    needs = (GENERATOR, TOKENIZER)

    def prepare(
        self, request: TranslateRequest, images: Sequence[ImageInput], model: LoadedModel
    ) -> TranslatePlan:
        model.task_limits.check_batch(len(request.texts), "texts")
        if request.via is not None:
            raise InvalidRequest("via: only a gateway has two models", field="via")
        section = self.section_of(model)
        direction = section.direction(request.source, request.target, model)
        language = section.source(request.source)
        check_stream(request.stream, return_attention=request.return_attention)
        options = beam_overrides(
            request,
            model,
            n=request.n,
            max_new_tokens=request.max_new_tokens,
            forced_bos_token_id=direction.forced_bos_token_id,
            return_alignment=request.return_attention or None,
        )
        if request.return_attention:
            model.alignment("tokens", "return_attention")
        index = _index(request)
        calls: list[GenerateCall] = []
        speller = None if index is None else TermSpeller(model, aligns(model), index)

        def planned(number: int, text: str) -> Text:
            field = f"texts.{number}"
            own, rest = split_target_prefix(text, direction, model)
            most = None if request.divide_long_sentences is False else MostTokens(own, model)
            source = SourceText(rest, field, language)
            paragraph, termed, parted = divide(source, speller, model, most)
            read = [sentence.text for sentence in termed]
            encoded = encoded_sentences(read, own, field, model)
            sentences = []
            for sentence, ids in zip(termed, encoded, strict=True):
                first = len(calls)
                if sentence.terms:
                    found = with_terms(sentence, ids, options, own, model, calls)
                    sentences.append(Sentence(first, found))
                    continue
                inputs = {SOURCE_IDS: np.array(ids, dtype=np.int64)}
                calls.append(model.generate_call(inputs, options))
                sentences.append(Sentence(first))
            return Text(paragraph, tuple(sentences), parted)

        texts = attempt_each(request.texts, planned, calls)
        if request.return_attention:
            read = [one for text in texts if isinstance(text, Text) for one in text.sentences]
            check_size([calls[sentence.call].tokens for sentence in read])
        return TranslatePlan(request, model, texts, tuple(calls))

    def canary(self, model: LoadedModel) -> Iterable[Call]:
        return [generator_canary(model)]

    def stored_name(self, request: TranslateRequest) -> str | None:
        return request.glossary_name

    def with_stored(self, request: TranslateRequest, stored: StoredTerms) -> TranslateRequest:
        """The request in the glossary's languages, where it names none.

        Raises:
            InvalidRequest: it names others.
        """
        languages = {}
        for field, own in (("source", stored.source), ("target", stored.target)):
            given = getattr(request, field)
            if own and given and given.lower() != own.lower():
                raise InvalidRequest(
                    f"the glossary's {field} is {own}: request that, or another glossary",
                    field=field,
                )
            languages[field] = given or own
        return StoredTermsRequest.model_construct(
            **{**dict(request), **languages, "stored": stored}
        )

    def legs(self, request: TranslateRequest) -> tuple[TranslateRequest, ...]:
        """Through the language between both, of which the best translation alone goes on."""
        if request.via is None:
            return (request,)
        first = {"target": request.via, "via": None, "n": None}
        then = {"source": request.via, "via": None}
        return request.model_copy(update=first), request.model_copy(update=then)

    def continued(self, leg: TranslateRequest, before: Response[Any]) -> TranslateRequest:
        texts = [item.text for item in before.data if item.error is None]
        return leg.model_copy(update={"texts": texts})

    def joined(self, first: Response[Any], last: Response[Any]) -> TranslateResponse:
        """Items that failed before the second leg keep their errors."""
        rest = iter(last.data)
        data = [item if item.error else _second(item, next(rest)) for item in first.data]
        usage = Usage(
            prompt_tokens=first.usage.prompt_tokens + last.usage.prompt_tokens,
            completion_tokens=first.usage.completion_tokens + last.usage.completion_tokens,
        )
        return TranslateResponse(model=f"{first.model}+{last.model}", data=data, usage=usage)

    def accepts(self, request: TranslateRequest, model: LoadedModel) -> bool:
        """Whether the model translates that pair; one without declared languages takes any."""
        return self.section_of(model).takes(request.source, request.target, model.name)

    def refusal(self, request: TranslateRequest, models: Sequence[LoadedModel]) -> InvalidRequest:
        sections = [(model.name, self.section_of(model)) for model in models]
        return pair_refusal(request.source, request.target, sections, is_chosen=bool(request.model))

    def details(self, model: LoadedModel) -> Mapping[str, Any]:
        section = self.section_of(model)
        return {
            "languages": [list(pair) for pair in section.languages],
            "language_codes": list(section.tokens.codes) if section.tokens else [],
        }

    def directions(self, model: LoadedModel) -> tuple[LanguagePairs, ...]:
        """The pairs of languages that a model declares."""
        section = self.section_of(model)
        return directions_of(section.languages, section.tokens)

    def spellings(self, model: LoadedModel) -> Mapping[str, frozenset[str]]:
        """Language of `directions` → other ISO codes of it."""
        tokens = self.section_of(model).tokens
        return {} if tokens is None else tokens.spellings

    def size(self, request: TranslateRequest) -> int:
        return sum(map(len, request.texts))


def _second(before: Translation, item: Translation) -> Translation:
    """The second translation, in the place of the first, with what happened to that."""
    if item.error is not None:
        return item.model_copy(update={"index": before.index})
    reasons = [one.finish_reason for one in (before, item) if one.finish_reason]
    divided = (before.divided_sentences or 0) + (item.divided_sentences or 0)
    return item.model_copy(
        update={
            "index": before.index,
            "finish_reason": FinishReason.of_all(reasons),
            "divided_sentences": divided or None,
        }
    )


def _index(request: TranslateRequest) -> TermIndex | None:
    """The request's terms; None where it has none."""
    glossary, copied = request.glossary or {}, request.do_not_translate or ()
    kinds = request.do_not_translate_kinds or ()
    stored = request.stored.table if isinstance(request, StoredTermsRequest) else None
    for field, texts in (
        ("glossary", [*glossary, *glossary.values()]),
        ("do_not_translate", copied),
    ):
        if any(map(is_blank, texts)):
            raise InvalidRequest(f"{field} holds an empty text", field=field)
    if not (glossary or copied or kinds or stored):
        return None
    return TermIndex(glossary, copied, kinds, stored)


TASK = Translate()
