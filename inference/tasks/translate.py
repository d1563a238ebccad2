"""`translate`: texts to sentences, one generator call each, and back to texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ConfigDict

from inference.engine.codec import SOURCE_IDS
from inference.errors import InvalidRequest, ServingError, TooLong
from inference.generation import Finished, FinishReason
from inference.processing.cancellation import check_abandoned
from inference.processing.sentences import Fits, Paragraph, is_blank, split_sentences, with_parts
from inference.processing.terms import FoundTerm, StoredTerms, TermIndex, composed
from inference.tasks.generation.overrides import beam_overrides, check_stream, is_greedy_stream
from inference.tasks.shared.alignment import block_diagonal, check_size, weights_of
from inference.tasks.shared.canaries import generator_canary
from inference.tasks.shared.image_inputs import ImageInput
from inference.tasks.shared.incremental_text import IncrementalText
from inference.tasks.shared.loaded_model import LoadedModel, check_characters, naming
from inference.tasks.shared.model_calls import (
    Call,
    GenerateCall,
    Outcome,
    Outcomes,
    answer_each,
    attempt_each,
    finished_of,
    map_valid,
    usage_of,
)
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
    LanguageEncoding,
    LanguagePairs,
    TranslateSection,
    directions_of,
    pair_refusal,
    target_prefixes,
)
from inference.tasks.translation.sentence_terms import (
    GlossaryCalls,
    GlossarySentence,
    TermSpeller,
    aligns,
    terms_of_each,
    with_terms,
    without_cut_terms,
)
from triptych.messages import Alternative, Response, Usage
from triptych.tasks import translate as declared
from triptych.tasks.translate import Alignment, TranslateRequest, TranslateResponse, Translation

PART = 0.5
"""Length of the parts of a sentence that is too long, in lengths that the model takes: near those
its translations are worse, and may be cut."""
_SPARE_TOKENS = 8
_PREFIX = re.compile(r"\s*(>>[^<\s]*<<)\s*")


@dataclass(frozen=True)
class MostTokens:
    """The length of a sentence that a model takes, read in one direction."""

    direction: LanguageEncoding
    model: LoadedModel

    def fits(self, share: float) -> Fits:
        """Whether a text has at most this share of the tokens."""
        direction, model = self.direction, self.model
        most = model.manifest.limits.max_input_tokens
        if most is None:
            return lambda text: True
        room = int(most * share) - len(direction.before) - len(direction.behind)

        def fits(text: str) -> bool:
            check_abandoned()
            read = direction.words + text
            if len(read) <= room and _most_tokens(read) <= room:
                return True
            if len(read) > model.longest_text:
                return False
            ids = model.tokenizer.encode(read, add_special_tokens=not direction.has_own_tokens)
            return len(ids) <= room

        return fits

    def count(self, field: str) -> Callable[[str], None]:
        """Counts the tokens of the parts of a text; raises TooLong behind those of one text."""
        total = 0

        def add(part: str) -> None:
            nonlocal total
            total += len(self.model.tokenizer.encode(part, add_special_tokens=False))
            check_tokens(total, field, self.model)

        return add


@dataclass(frozen=True)
class SourceText:
    """A text of a request.

    Attributes:
        text: The text.
        field: The request's field of it, for errors.
        language: Its code, if it is known.
    """

    text: str
    field: str
    language: str | None = None


def divide(
    source: SourceText,
    speller: TermSpeller | None,
    model: LoadedModel,
    most: MostTokens | None = None,
) -> tuple[Paragraph, list[GlossarySentence], int]:
    """The paragraph, its sentences with their terms, and how many sentences are now in parts.

    Args:
        source: The text.
        speller: Of a request with terms: finds and writes them.
        model: The model.
        most: The tokens that a sentence may have; longer ones are divided.

    Raises:
        InvalidRequest: nothing to translate, or a term that the model cannot write.
        TooLong: more than a text may have, whatever its tokens are.
    """
    text, field = source.text, source.field
    check_characters(len(text), field, model.task_limits.max_input_tokens)
    text = text if speller is None else composed(text, field)
    paragraph = split_sentences(text, model.task_limits.max_input_tokens, source.language)
    check_tokens(len(paragraph.sentences), field, model)  # each has at least one
    if not paragraph.sentences:
        raise InvalidRequest(f"{field} is empty: there is nothing to translate", field=field)
    found: list[FoundTerm] = []
    if speller is not None:
        found = speller.index.find(text)
        check_tokens(len(found), field, model)
        paragraph = without_cut_terms(paragraph, found)
    parted = 0
    if most is not None:
        kept = [(term.start, term.end) for term in found]
        fits, count = (most.fits(1.0), most.fits(PART)), most.count(field)
        with naming(field):
            paragraph, parted = with_parts(paragraph, fits[0], kept, fits[1], count)
    if speller is None:
        termed = [GlossarySentence(sentence) for sentence in paragraph.sentences]
        return paragraph, termed, parted
    each = zip(paragraph.sentences, terms_of_each(paragraph, found), strict=True)
    termed = [speller.sentence(sentence, terms, field) for sentence, terms in each]
    return paragraph, termed, parted


def encoded_sentences(
    sentences: Sequence[str], direction: LanguageEncoding, field: str, model: LoadedModel
) -> list[list[int]]:
    """The ids of a text's sentences.

    Raises:
        InvalidRequest: no target language where the model needs one.
        TooLong: a sentence is longer than the model takes, or the text than the gateway takes.
    """
    if target_prefixes(model) and not direction.words:
        raise InvalidRequest(
            f"{model.name} translates into several languages: give target", field="target"
        )
    ids: list[list[int]] = []
    total = 0
    for sentence in sentences:
        own = model.encode(direction.words + sentence, field, special=not direction.has_own_tokens)
        ids.append([*direction.before, *own, *direction.behind])
        model.check_length(len(ids[-1]), field, what=f" (sentence {len(ids)})")
        total += len(ids[-1])
        check_tokens(
            total, field, model, f" ({total} in its first {len(ids)} of {len(sentences)} sentences)"
        )
    return ids


def check_tokens(least: int, field: str, model: LoadedModel, what: str = "") -> None:
    """Raises TooLong for a text with more tokens than the gateway takes.

    Args:
        least: Tokens that it has at least.
        field: The request's field of the text.
        what: How they were counted, for the error.
    """
    most = model.task_limits.max_input_tokens
    if least > most:
        raise TooLong(
            f"{field} has more than {most} tokens{what}: split it into several texts", field=field
        )


def _most_tokens(text: str) -> int:
    """More tokens than a text can have: each holds a byte of its normal form, or is a space."""
    return len(unicodedata.normalize("NFKC", text).encode(errors="replace")) + _SPARE_TOKENS


def split_target_prefix(
    text: str, direction: LanguageEncoding, model: LoadedModel
) -> tuple[LanguageEncoding, str]:
    """(direction, rest): a `>>xx<<` at the beginning of the text is for all its sentences."""
    found = _PREFIX.match(text)
    if found and found.group(1) in target_prefixes(model):
        return LanguageEncoding(words=f"{found.group(1)} "), text[found.end() :]
    return direction, text


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
        return finished.with_texts(texts, pieces, best.alignment)


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
        def translate(index: int, text: Text) -> Translation:
            return self._translation(index, text, outcomes)

        data = answer_each(self.texts, translate, Translation)
        return TranslateResponse(model=self.model.name, data=data, usage=usage_of(outcomes))

    def streaming(self) -> Streaming:
        """Sentences in order: plain ones as they are generated, those with terms when complete."""
        items = map_valid(self.texts, self._stream_item)
        is_greedy = is_greedy_stream(self.request, self.calls, self.model)
        return Streaming(items, self.calls, is_greedy=is_greedy)

    def _stream_item(self, text: Text) -> StreamedItem:
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

        def plan(number: int, text: str) -> Text:
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

        texts = attempt_each(request.texts, plan, calls)
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

    def split_legs(self, request: TranslateRequest) -> tuple[TranslateRequest, ...]:
        """Through the language between both, of which the best translation alone goes on."""
        if request.via is None:
            return (request,)
        first = {"target": request.via, "via": None, "n": None}
        then = {"source": request.via, "via": None}
        return request.model_copy(update=first), request.model_copy(update=then)

    def continue_leg(self, leg: TranslateRequest, before: Response[Any]) -> TranslateRequest:
        texts = [item.text for item in before.data if item.error is None]
        return leg.model_copy(update={"texts": texts})

    def join_responses(self, first: Response[Any], last: Response[Any]) -> TranslateResponse:
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
