"""The routes for texts and languages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response

from inference.errors import ServingError
from serving.documents.formats import FORMATS
from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.libretranslate.documentation import open_route, posted
from serving.gateway.dialects.libretranslate.errors import error_response
from serving.gateway.dialects.libretranslate.exchange import answered, bounded, read_message
from serving.gateway.dialects.libretranslate.identification import Identifier
from serving.gateway.dialects.libretranslate.languages import AUTO, Translators
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
            body = await read_message(request, TranslateBody, service, self._keys)
            work = translated(body, service, self._identifier, "/translate")
            return answered(Translated, await bounded(request, service, work))

        return translate

    def _detect(self, service: Service) -> Endpoint:
        async def detect(request: Request) -> Response:
            body = await read_message(request, DetectBody, service, self._keys)
            texts = [body.q] if isinstance(body.q, str) else body.q
            codes = Translators.among(service.catalog.models).codes
            find = self._identifier.candidates
            work = service.execution.in_pool(None, find, texts, codes)
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


_NAMES = """
aa Afar; ab Abkhazian; ae Avestan; af Afrikaans; ak Akan; am Amharic; an Aragonese; ar Arabic;
as Assamese; av Avaric; ay Aymara; az Azerbaijani; ba Bashkir; be Belarusian; bg Bulgarian;
bi Bislama; bm Bambara; bn Bengali; bo Tibetan; br Breton; bs Bosnian; ca Catalan; ce Chechen;
ch Chamorro; co Corsican; cr Cree; cs Czech; cu Church Slavonic; cv Chuvash; cy Welsh; da Danish;
de German; dv Divehi; dz Dzongkha; ee Ewe; el Greek; en English; eo Esperanto; es Spanish;
et Estonian; eu Basque; fa Persian; ff Fulah; fi Finnish; fj Fijian; fo Faroese; fr French;
fy Western Frisian; ga Irish; gd Scottish Gaelic; gl Galician; gn Guarani; gu Gujarati; gv Manx;
ha Hausa; he Hebrew; hi Hindi; ho Hiri Motu; hr Croatian; ht Haitian Creole; hu Hungarian;
hy Armenian; hz Herero; ia Interlingua; id Indonesian; ie Interlingue; ig Igbo; ii Sichuan Yi;
ik Inupiaq; io Ido; is Icelandic; it Italian; iu Inuktitut; ja Japanese; jv Javanese; ka Georgian;
kg Kongo; ki Kikuyu; kj Kuanyama; kk Kazakh; kl Kalaallisut; km Khmer; kn Kannada; ko Korean;
kr Kanuri; ks Kashmiri; ku Kurdish; kv Komi; kw Cornish; ky Kyrgyz; la Latin; lb Luxembourgish;
lg Ganda; li Limburgish; ln Lingala; lo Lao; lt Lithuanian; lu Luba-Katanga; lv Latvian;
mg Malagasy; mh Marshallese; mi Māori; mk Macedonian; ml Malayalam; mn Mongolian; mr Marathi;
ms Malay; mt Maltese; my Burmese; na Nauru; nb Norwegian Bokmål; nd North Ndebele; ne Nepali;
ng Ndonga; nl Dutch; nn Norwegian Nynorsk; no Norwegian; nr South Ndebele; nv Navajo; ny Chichewa;
oc Occitan; oj Ojibwa; om Oromo; or Odia; os Ossetian; pa Punjabi; pi Pali; pl Polish; ps Pashto;
pt Portuguese; qu Quechua; rm Romansh; rn Rundi; ro Romanian; ru Russian; rw Kinyarwanda;
sa Sanskrit; sc Sardinian; sd Sindhi; se Northern Sami; sg Sango; si Sinhala; sk Slovak;
sl Slovenian; sm Samoan; sn Shona; so Somali; sq Albanian; sr Serbian; ss Swati; st Southern Sotho;
su Sundanese; sv Swedish; sw Swahili; ta Tamil; te Telugu; tg Tajik; th Thai; ti Tigrinya;
tk Turkmen; tl Tagalog; tn Tswana; to Tongan; tr Turkish; ts Tsonga; tt Tatar; tw Twi; ty Tahitian;
ug Uyghur; uk Ukrainian; ur Urdu; uz Uzbek; ve Venda; vi Vietnamese; vo Volapük; wa Walloon;
wo Wolof; xh Xhosa; yi Yiddish; yo Yoruba; za Zhuang; zh Chinese; zu Zulu
"""
NAMES = dict(entry.split(maxsplit=1) for entry in " ".join(_NAMES.split()).split("; "))


def name_of(code: str) -> str:
    """The name of a language; of a code that is a model's own, e.g. `zho_Hans`, the code."""
    return NAMES.get(code, code)
