"""`/translate`: texts or HTML in one direction."""

from __future__ import annotations

from collections.abc import Sequence

from serving.documents.passages import Passage, page_passages, translated_pages
from serving.gateway.dialects.libretranslate.identification import Identifier
from serving.gateway.dialects.libretranslate.languages import AUTO, Translators
from serving.gateway.dialects.libretranslate.messages import Detected, TranslateBody, Translated
from serving.gateway.dialects.libretranslate.translator import Translator
from serving.gateway.requests.service import Service

_S_PER_CHARACTER = 1e-6
"""About what reading HTML takes."""


async def translated(
    body: TranslateBody, service: Service, identifier: Identifier, route: str
) -> Translated:
    """The response of a request.

    Raises:
        ServingError: a language is not served, or a text cannot be translated.
    """
    texts = [body.q] if isinstance(body.q, str) else body.q
    in_process = service.execution.in_process
    expected_s = _S_PER_CHARACTER * sum(map(len, texts))
    pages: list[list[Passage]] = []
    read = texts
    if body.format == "html":
        pages = await in_process(expected_s, page_passages, texts)
        read = [" ".join(passage.text for passage in page) for page in pages]
    translator, detected = await translator_of(
        read, body.source, body.target, service, identifier, route, "segment" if pages else "q"
    )
    further = body.alternatives or 0
    others: list[list[str]] | None
    if body.format == "html":
        done = await translator.passages([passage for page in pages for passage in page])
        best = await in_process(2 * expected_s, translated_pages, texts, done)
        others = [[] for _ in texts] if further else None
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
