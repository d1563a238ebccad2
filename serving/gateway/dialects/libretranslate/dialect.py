"""The routes of LibreTranslate's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, SecretStr, TypeAdapter

from serving.errors import DeadlineExceeded, ServingError
from serving.gateway.dialects.libretranslate.bodies import check_key, read_fields, validated
from serving.gateway.dialects.libretranslate.documentation import open_route, posted
from serving.gateway.dialects.libretranslate.errors import error_response
from serving.gateway.dialects.libretranslate.identification import Identifier
from serving.gateway.dialects.libretranslate.languages import AUTO, Translators
from serving.gateway.dialects.libretranslate.messages import (
    Body,
    DetectBody,
    Detected,
    FrontendSettings,
    Language,
    NamedLanguage,
    SelectedLanguages,
    TranslateBody,
    Translated,
)
from serving.gateway.dialects.libretranslate.names import name_of
from serving.gateway.dialects.libretranslate.translation import translated
from serving.gateway.disconnect import unless_disconnected
from serving.gateway.service import Service

B = TypeVar("B", bound=Body)
Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

_TYPING_MS = 500
"""After the last key press, LibreTranslate's page waits so long before it translates."""


class LibreTranslateDialect:
    """LibreTranslate's API.

    Args:
        key: Required of every request that translates or identifies, if given.
    """

    def __init__(self, key: SecretStr | None) -> None:
        self._key = key
        self._identifier = Identifier()

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
        has_key = self._key is not None
        router.add_api_route(
            "/translate",
            self._translate(service),
            methods=["POST"],
            summary="Translate texts, in the form of LibreTranslate's API.",
            **posted(TranslateBody, Translated, has_key=has_key),
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
            body = await self._read(request, TranslateBody, service)
            work = translated(body, service, self._identifier, "/translate")
            return _json(Translated, await _bounded(request, service, work))

        return translate

    def _detect(self, service: Service) -> Endpoint:
        async def detect(request: Request) -> Response:
            body = await self._read(request, DetectBody, service)
            texts = [body.q] if isinstance(body.q, str) else body.q
            codes = Translators.among(service.catalog.models).codes
            find = self._identifier.candidates
            found = await service.execution.in_pool(None, find, texts, codes)
            return _json(list[Detected], found)

        return detect

    def _languages(self, service: Service) -> Endpoint:
        async def languages(request: Request) -> Response:
            offered = Translators.among(service.catalog.models)
            listed = [
                Language(code=code, name=name_of(code), targets=list(offered.targets(code)))
                for code in offered.codes
            ]
            return _json(list[Language], listed)

        return languages

    def _settings(self, service: Service) -> Endpoint:
        async def settings(request: Request) -> Response:
            codes = Translators.among(service.catalog.models).codes
            target = codes[0] if codes else ""
            shown = FrontendSettings(
                api_keys=self._key is not None,
                char_limit=-1,
                files_translation=False,
                frontend_timeout=_TYPING_MS,
                key_required=self._key is not None,
                language=SelectedLanguages(
                    source=NamedLanguage(code=AUTO, name="Auto Detect"),
                    target=NamedLanguage(code=target, name=name_of(target)),
                ),
                suggestions=False,
                supported_files_format=[],
            )
            return _json(FrontendSettings, shown)

        return settings

    async def _read(self, request: Request, message: type[B], service: Service) -> B:
        fields, _ = await read_fields(request, service)
        check_key(request.headers.get("authorization"), fields, self._key)
        return validated(message, fields)


T = TypeVar("T")


async def _bounded(request: Request, service: Service, work: Coroutine[Any, Any, T]) -> T:
    """The work's result, within the time of one request.

    Raises:
        DeadlineExceeded: there is none by then.
        ClientDisconnect: the client disconnected.
    """
    limit_s = service.settings.request_timeout
    try:
        async with asyncio.timeout(limit_s):
            return await unless_disconnected(request.receive, work)
    except TimeoutError:
        raise DeadlineExceeded(
            f"no response within {limit_s:g} s: send a smaller request"
        ) from None


def _json(kind: Any, value: BaseModel | list[Any]) -> Response:
    content = TypeAdapter(kind).dump_json(value, by_alias=True, exclude_none=True)
    return Response(content, media_type="application/json")
