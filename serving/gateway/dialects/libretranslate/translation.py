"""`/translate`: texts or HTML in one direction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from serving.documents.html import Html
from serving.documents.limits import check_segments
from serving.gateway.dialects.libretranslate.identification import Identifier
from serving.gateway.dialects.libretranslate.languages import AUTO, Translators
from serving.gateway.dialects.libretranslate.messages import Detected, TranslateBody, Translated
from serving.gateway.dialects.libretranslate.translator import Translator
from serving.gateway.service import Service


async def translated(
    body: TranslateBody, service: Service, identifier: Identifier, route: str
) -> Translated:
    """The response of a request.

    Raises:
        ServingError: a language is not served, or a text cannot be translated.
    """
    texts = [body.q] if isinstance(body.q, str) else body.q
    if body.format == "html":
        parse = partial(_documents, texts)
        documents = await service.execution.in_pool(sum(map(len, texts)), parse)
        read = [" ".join(segment.text for segment in one.segments) for one in documents]
    else:
        documents, read = [], texts
    translator, detected = await translator_of(
        read, body.source, body.target, service, identifier, route, "segment" if documents else "q"
    )
    further = body.alternatives or 0
    others: list[list[str]] | None
    if body.format == "html":
        best, others = await _html(documents, translator), [[] for _ in texts] if further else None
    else:
        found = await translator.hypotheses(texts, further)
        best = [hypotheses[0] for hypotheses in found]
        others = [hypotheses[1 : further + 1] for hypotheses in found] if further else None
    if isinstance(body.q, str):
        return Translated(
            translated_text=best[0],
            detected_language=detected,
            alternatives=None if others is None else others[0],
        )
    return Translated(
        translated_text=best,
        detected_language=None if detected is None else [detected] * len(texts),
        alternatives=others,
    )


def _documents(texts: Sequence[str]) -> list[Html]:
    documents = []
    for text in texts:
        documents.append(Html(text))
        check_segments(sum(len(one.segments) for one in documents))
    return documents


async def _html(documents: Sequence[Html], translator: Translator) -> list[str]:
    """The documents with their segments translated."""
    found = iter(await translator.segments([s for one in documents for s in one.segments]))
    return [one.text([next(found) for _ in one.segments]) for one in documents]


async def translator_of(
    texts: Sequence[str],
    source: str,
    target: str,
    service: Service,
    identifier: Identifier,
    route: str,
    name: str,
) -> tuple[Translator, Detected | None]:
    """The translator of a direction, and the language that was identified.

    Args:
        texts: What `auto` identifies, among the languages that are translated into the target.
        source: A code, or `auto`.
        target: A code.
        service: Serves the models.
        identifier: Identifies the source.
        route: Label of the metrics.
        name: What the request calls its texts, for errors.

    Raises:
        InvalidRequest: a language is not served, or not that direction.
    """
    offered = Translators.among(service.catalog.models)
    into = offered.resolve(target, "target")
    detected = None
    if source.lower() == AUTO:
        find = identifier.candidates
        detected = (await service.execution.in_pool(None, find, texts, offered.sources(into)))[0]
        read = detected.language
    else:
        read = offered.resolve(source, "source")
    model = None if read == into else offered.model(read, into)
    return Translator(service, route, name, model, read, into), detected
