"""The routes for texts and languages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response

from inference.errors import ServingError
from serving.documents.formats import FORMATS
from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.libretranslate.documentation import open_route, posted
from serving.gateway.dialects.libretranslate.exchange import (
    answered,
    bounded,
    error_response,
    read_message,
)
from serving.gateway.dialects.libretranslate.languages import AUTO, Identifier, Translators, name_of
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
from serving.gateway.dialects.libretranslate.translation import translated
from serving.gateway.requests.service import Service

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

_TYPING_MS = 500
"""After the last key press, LibreTranslate's page waits so long before it translates."""


class LibreTranslateDialect:
    """LibreTranslate's API.

    Args:
        keys: Required of every request that translates or identifies, if there are any.
        identifier: Identifies languages.
    """

    def __init__(self, keys: Keys, identifier: Identifier) -> None:
        self._keys, self._identifier = keys, identifier

    def router(self, service: Service) -> APIRouter:
        """`/translate`, `/detect`, `/languages` and `/frontend/settings`."""
        router = APIRouter()
        for path, endpoint, summary, response in (
            ("/languages", self._languages(service), "List the languages.", list[Language]),
            ("/frontend/settings", self._settings(service), "What a page shows.", FrontendSettings),
        ):
            router.add_api_route(
                path, endpoint, methods=["GET"], summary=summary, **open_route(response)
            )
        has_key = self._keys.are_required
        router.add_api_route(
            "/translate",
            self._translate(service),
            methods=["POST"],
            summary="Translate texts, in the form of LibreTranslate's API.",
            **posted(TranslateBody, Translated, has_key=has_key, translates=True),
        )
        router.add_api_route(
            "/detect",
            self._detect(service),
            methods=["POST"],
            summary="Identify the language of a text, in the form of LibreTranslate's API.",
            **posted(DetectBody, list[Detected], has_key=has_key),
        )
        return router

    def render_error(self, error: ServingError) -> Response:
        """`{"error": "…"}` with LibreTranslate's status."""
        return error_response(error)

    def _translate(self, service: Service) -> Endpoint:
        async def translate(request: Request) -> Response:
            body = await read_message(request, TranslateBody, service, self._keys)
            work = translated(body, service, self._identifier, "/translate")
            answer, reason = await bounded(request, service, work)
            return answered(Translated, answer, reason)

        return translate

    def _detect(self, service: Service) -> Endpoint:
        async def detect(request: Request) -> Response:
            body = await read_message(request, DetectBody, service, self._keys)
            texts = [body.q] if isinstance(body.q, str) else body.q
            offered = Translators.among(service.catalog.models)
            find, codes = self._identifier.candidates, offered.spellings(offered.codes)
            work = service.in_pool(None, find, texts, codes)
            found = await bounded(request, service, work)
            return answered(list[Detected], found)

        return detect

    def _languages(self, service: Service) -> Endpoint:
        async def languages(request: Request) -> Response:
            offered = Translators.among(service.catalog.models)
            listed = [
                Language(code=code, name=name_of(code), targets=list(offered.targets(code)))
                for code in offered.codes
            ]
            return answered(list[Language], listed)

        return languages

    def _settings(self, service: Service) -> Endpoint:
        async def settings(request: Request) -> Response:
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
            return answered(FrontendSettings, shown)

        return settings
