"""LibreTranslate's routes for texts and languages."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from serving.documents.formats import FORMATS
from serving.gateway.dialects.libretranslate.exchange import (
    FINISHED,
    STATUSES,
    LibreTranslateRoutes,
    any_form,
    read_message,
    respond,
    within_time,
)
from serving.gateway.dialects.libretranslate.languages import AUTO, Translators, name_of
from serving.gateway.dialects.libretranslate.messages import (
    DetectBody,
    Detected,
    FrontendSettings,
    Language,
    NamedLanguage,
    SelectedLanguages,
    TranslateBody,
    Translated,
)
from serving.gateway.dialects.libretranslate.translation import translate
from serving.gateway.http.router import Route
from serving.gateway.requests.service import Service

_TYPING_MS = 500
"""After the last key press, LibreTranslate's page waits so long before it translates."""


class LibreTranslateDialect(LibreTranslateRoutes):
    """The routes for texts and languages."""

    def routes(self) -> Iterator[Route]:
        """`/translate`, `/detect`, `/languages` and `/frontend/settings`."""
        yield Route(
            "/languages",
            self._languages,
            "List the languages.",
            list[Language],
            (500,),
            name="languages",
        )
        yield Route(
            "/frontend/settings",
            self._settings,
            "What a page shows.",
            FrontendSettings,
            (500,),
            name="settings",
        )
        yield Route(
            "/translate",
            self._translate,
            "Translate texts, in the form of LibreTranslate's API.",
            Translated,
            STATUSES,
            name="translate",
            content=any_form(TranslateBody),
            responses=FINISHED,
        )
        yield Route(
            "/detect",
            self._detect,
            "Identify the language of a text, in the form of LibreTranslate's API.",
            list[Detected],
            STATUSES,
            name="detect",
            content=any_form(DetectBody),
        )

    async def _translate(self, request: Request, service: Service) -> Response:
        body = await read_message(request, TranslateBody, service, self._keys)
        work = translate(body, service, self._identifier, "/translate")
        answer, reason = await within_time(request, service, work)
        return respond(Translated, answer, reason)

    async def _detect(self, request: Request, service: Service) -> Response:
        body = await read_message(request, DetectBody, service, self._keys)
        texts = [body.q] if isinstance(body.q, str) else body.q
        offered = Translators.among(service.catalog.models)
        find, codes = self._identifier.candidates, offered.spellings(offered.codes)
        work = service.in_pool(None, find, texts, codes)
        return respond(list[Detected], await within_time(request, service, work))

    async def _languages(self, request: Request, service: Service) -> Response:
        offered = Translators.among(service.catalog.models)
        listed = [
            Language(code=code, name=name_of(code), targets=list(offered.targets(code)))
            for code in offered.codes
        ]
        return respond(list[Language], listed)

    async def _settings(self, request: Request, service: Service) -> Response:
        codes = Translators.among(service.catalog.models).codes
        target = codes[0] if codes else ""
        shown = FrontendSettings(
            api_keys=self._keys.are_required,
            char_limit=-1,
            files_translation=True,
            frontend_timeout=_TYPING_MS,
            key_required=self._keys.are_required,
            language=SelectedLanguages(
                source=NamedLanguage(code=AUTO, name="Auto Detect"),
                target=NamedLanguage(code=target, name=name_of(target)),
            ),
            suggestions=False,
            supported_files_format=list(FORMATS),
        )
        return respond(FrontendSettings, shown)
