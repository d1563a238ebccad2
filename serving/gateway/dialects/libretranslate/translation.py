"""`/translate`: texts or HTML in one direction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias

from inference.errors import ServingError, TooLong
from inference.generation import FinishReason
from inference.tasks.shared.alignment import MAX_SOURCE_TOKENS
from inference.tasks.shared.loaded_model import LoadedModel, check_characters
from inference.tasks.translate import TASK
from serving.documents.passages import Passage, TranslatedPassage, page_passages, translated_pages
from serving.gateway.dialects.all_or_nothing import check_each
from serving.gateway.dialects.libretranslate.exchange import TEXTS, with_name
from serving.gateway.dialects.libretranslate.languages import AUTO, Identifier, Translators
from serving.gateway.dialects.libretranslate.messages import Detected, TranslateBody, Translated
from serving.gateway.requests.service import Service, TaskRequest
from triptych.tasks.translate import TranslateRequest, Translation

Item: TypeAlias = tuple[int, Translation]
"""A text's place among all, and its translation."""
ALIGNMENT = "return_attention"
"""The field that models without alignments refuse."""


@dataclass(frozen=True)
class Translator:
    """A direction, and the model that translates into the target; None from a language to itself.

    Attributes:
        service: Serves the model.
        route: Label of the metrics.
        name: What the request calls its texts, for errors.
        model: The model.
        source: Language of the texts.
        target: Language to translate into.
        via: What another model translates the texts into first, if this one does not read them.
        places: Of the texts in the request, for errors; empty where it has a single one.
        reasons: Why the translations that were made until now ended; shared by a request's
            translators.
    """

    service: Service
    route: str
    name: str
    model: LoadedModel | None
    source: str
    target: str
    via: str | None
    places: Sequence[int]
    reasons: list[str]

    @property
    def finish_reason(self) -> str:
        """`length` where the limit of tokens cut any translation until now."""
        return FinishReason.of_all(self.reasons)

    async def hypotheses(self, texts: Sequence[str], further: int = 0) -> list[list[str]]:
        """Translations of each text, best first; a text without a letter is its own only one.

        Args:
            further: Number of translations beside the best.

        Raises:
            InvalidRequest: a text cannot be translated: it names that text.
            ServingError: the service cannot.
        """
        results = [[text] for text in texts]
        if self.model is None:
            return results
        beams = self.model.generation.num_beams
        asked: dict[str, Any] = {}
        if further:
            asked = {"n": further + 1, "num_beams": max(further + 1, beams)}
        places = await self._with_letters(texts)
        for batch in self._batches(places):
            for place, item in await self._translate(texts, batch, **asked):
                results[place] = _distinct(item)
        return results

    async def passages(self, passages: Sequence[Passage]) -> list[TranslatedPassage] | None:
        """Translations of passages, with alignments of those that need them; None without a model.

        Raises:
            ServingError: see `hypotheses`.
        """
        if self.model is None:
            return None
        texts = [passage.text for passage in passages]
        await self._with_letters(texts)
        plain = [place for place, one in enumerate(passages) if one.is_plain]
        marked = [place for place, one in enumerate(passages) if not one.is_plain]
        results = [TranslatedPassage("")] * len(passages)
        for batch in self._batches(plain):
            for place, item in await self._translate(texts, batch):
                results[place] = TranslatedPassage(item.text or "")
        for batch in _short(marked, texts, self.service.settings.max_client_batch_size):
            for place, item in await self._align(texts, batch):
                results[place] = TranslatedPassage(item.text or "", item.alignment)
        return results

    async def _with_letters(self, texts: Sequence[str]) -> list[int]:
        """Places of the texts that are to be translated.

        Raises:
            InvalidRequest: one of them is far too long.
        """
        most = self.service.settings.max_input_tokens
        size = sum(map(len, texts))
        try:
            return await self.service.in_pool(size, _with_letters, texts, most)
        except TooLong as error:
            raise with_name(error, self.name, self.places) from None

    async def _align(self, texts: Sequence[str], batch: Sequence[int]) -> Iterable[Item]:
        """Translations with alignments; without, from models that have none, and from two."""
        if self.via is not None:
            return await self._translate(texts, batch)
        try:
            return await self._translate(texts, batch, return_attention=True)
        except ServingError as error:
            if error.field != ALIGNMENT:
                raise
            return await self._translate(texts, batch)

    async def _translate(
        self, texts: Sequence[str], batch: Sequence[int], **parameters: Any
    ) -> Iterable[Item]:
        """Each place with its translation.

        Raises:
            InvalidRequest: a text cannot be translated: it names that text.
            ServingError: the service cannot.
        """
        assert self.model is not None
        message = TranslateRequest(
            model=self.model.name if self.via is None else None,
            texts=[texts[place] for place in batch],
            source=self.source,
            target=self.target,
            via=self.via,
            **parameters,
        )
        try:
            response, _ = await self.service.answer(TaskRequest(TASK, message, self.route))
            check_each(response.data)
        except ServingError as error:
            if error.field is None or error.field == ALIGNMENT:
                raise
            places = [self.places[place] for place in batch] if self.places else ()
            raise with_name(error, self.name, places) from None
        for item in response.data:
            shown = item.alternatives or (item,)
            self.reasons.extend(one.finish_reason for one in shown if one.finish_reason)
        return zip(batch, response.data, strict=True)

    def _batches(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        size = self.service.settings.max_client_batch_size
        return (places[first : first + size] for first in range(0, len(places), size))


def _short(places: Sequence[int], texts: Sequence[str], size: int) -> Iterator[Sequence[int]]:
    """Batches of at most `size` texts whose alignments are small enough for one request."""
    batch: list[int] = []
    characters = 0
    for place in places:
        characters += len(texts[place])
        if batch and (characters > MAX_SOURCE_TOKENS or len(batch) == size):
            yield batch
            batch, characters = [], len(texts[place])
        batch.append(place)
    if batch:
        yield batch


def _with_letters(texts: Sequence[str], most_tokens: int) -> list[int]:
    found = []
    for place, text in enumerate(texts):
        check_characters(len(text), f"{TEXTS}.{place}", most_tokens)
        if any(map(str.isalpha, text)):
            found.append(place)
    return found


def _distinct(item: Translation) -> list[str]:
    """The best translation and the others that differ from it and from each other."""
    found = [item.text or "", *(one.text for one in item.alternatives or ())]
    return list(dict.fromkeys(found))


_S_PER_CHARACTER = 1e-6
"""About what reading HTML takes."""


async def translate(
    body: TranslateBody, service: Service, identifier: Identifier, route: str
) -> tuple[Translated, str]:
    """The response of a request, and the reason for which its translations ended.

    Raises:
        ServingError: a language is not served, or a text cannot be translated.
    """
    texts = [body.q] if isinstance(body.q, str) else body.q
    pages: list[list[Passage]] = []
    read = texts
    if body.format == "html":
        pages = await service.in_process(_expected_s(texts), page_passages, texts)
        read = [" ".join(passage.text for passage in page) for page in pages]
    directions = Directions(service, identifier, route, body.target)
    sources, detected = await directions.sources(read, body.source)
    results: list[list[str]] = [[] for _ in texts]
    for source in dict.fromkeys(sources):
        group = [place for place, own in enumerate(sources) if own == source]
        own = [texts[place] for place in group]
        if body.format == "html":
            translator = directions.translator(source, "segment", _segments(pages, group))
            passages = [passage for place in group for passage in pages[place]]
            found = await _translate_pages(translator, own, passages)
        else:
            translator = directions.translator(source, "q", group if len(texts) > 1 else ())
            found = await translator.hypotheses(own, body.alternatives or 0)
        for place, hypotheses in zip(group, found, strict=True):
            results[place] = hypotheses
    best = [hypotheses[0] for hypotheses in results]
    others = None
    if body.alternatives:
        others = [hypotheses[1 : body.alternatives + 1] for hypotheses in results]
    if isinstance(body.q, str):
        answer = Translated(
            translated_text=best[0],
            detected_language=detected[0] if detected else None,
            alternatives=None if others is None else others[0],
        )
    else:
        answer = Translated(translated_text=best, detected_language=detected, alternatives=others)
    return answer, FinishReason.of_all(directions.reasons)


async def _translate_pages(
    translator: Translator, texts: Sequence[str], passages: Sequence[Passage]
) -> list[list[str]]:
    """The only translation of each page of HTML."""
    done = await translator.passages(passages)
    in_process = translator.service.in_process
    found = await in_process(2 * _expected_s(texts), translated_pages, texts, done)
    return [[page] for page in found]


def _expected_s(texts: Sequence[str]) -> float:
    return _S_PER_CHARACTER * sum(map(len, texts))


def _segments(pages: Sequence[Sequence[Passage]], group: Sequence[int]) -> Sequence[int]:
    """Numbers of the passages of some pages among those of all; none of a single passage."""
    ends = list(accumulate(map(len, pages), initial=0))
    if ends[-1] == 1:
        return ()
    return [number for place in group for number in range(ends[place], ends[place + 1])]


@dataclass(frozen=True)
class Directions:
    """The languages of a request, and the translators between them.

    Attributes:
        service: Serves the models.
        identifier: Identifies the sources.
        route: Label of the metrics.
        target: Code of the language to translate into.
        reasons: Why the translations that were made until now ended.
    """

    service: Service
    identifier: Identifier
    route: str
    target: str
    reasons: list[str] = field(default_factory=list)

    @cached_property
    def _offered(self) -> Translators:
        return Translators.among(self.service.catalog.models)

    @property
    def _into(self) -> str:
        return self._offered.resolve(self.target, "target")

    async def sources(
        self, texts: Sequence[str], source: str
    ) -> tuple[list[str], list[Detected] | None]:
        """The language of each text, and what was identified.

        Args:
            texts: What `auto` identifies, among the languages that are translated into the target.
            source: A code, or `auto`.

        Raises:
            InvalidRequest: a language is not served.
        """
        into = self._into
        if source.lower() != AUTO:
            return [self._offered.resolve(source, "source")] * len(texts), None
        codes = self._offered.spellings(self._offered.sources(into))
        find = self.identifier.each
        detected = await self.service.in_pool(None, find, texts, codes)
        return [one.language for one in detected], detected

    def translator(self, source: str, name: str, places: Sequence[int]) -> Translator:
        """The translator from a language.

        Args:
            source: A code, as `sources` returns it.
            name: What the request calls its texts, for errors.
            places: Of the texts in the request; empty where it has a single one.

        Raises:
            InvalidRequest: the direction is not served.
        """
        into = self._into
        model, via = (None, None) if source == into else self._offered.path(source, into)
        names = self.route, name
        return Translator(self.service, *names, model, source, into, via, places, self.reasons)
