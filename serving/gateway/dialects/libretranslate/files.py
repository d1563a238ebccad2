"""`/translate_file`, and `/download_file` for its answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from inference.errors import InvalidRequest, Overloaded
from serving.documents.passages import file_passages, translated_file
from serving.gateway.admission.auth import Keys, key_name
from serving.gateway.dialects.libretranslate.downloads import Downloads, DownloadStore
from serving.gateway.dialects.libretranslate.exchange import (
    FINISHED,
    STATUSES,
    LibreTranslateRoutes,
    form_of,
    respond,
    within_time,
)
from serving.gateway.dialects.libretranslate.languages import Identifier
from serving.gateway.dialects.libretranslate.messages import (
    FileBody,
    TranslatedFile,
    Upload,
    read_authorised,
    validate,
)
from serving.gateway.dialects.libretranslate.translation import Directions, Translator
from serving.gateway.http.bodies import MULTIPART
from serving.gateway.http.router import Route, path_parameter
from serving.gateway.requests.service import Service

FILE = "file"
_PATH = "/translate_file"
_AT_ONCE = 4
"""Files that are translated at one time; a parsed one takes several times its size."""
_MOST_WAITING = 16
"""Files that wait for a turn; more are refused."""
_S_PER_BYTE = 1e-6
"""About what reading a file takes."""
_LONGEST_NAME = 100
_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)
_DOWNLOAD_HEADERS = {
    # A page of a user's is never shown as one of the gateway's.
    "content-security-policy": "sandbox; default-src 'none'",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class FileDialect(LibreTranslateRoutes):
    """LibreTranslate's routes for files.

    The address of a translated file is all that is needed to fetch it, since browsers follow it
    without a key: its name has 256 random bits.

    Args:
        downloads: Keeps what was translated.
    """

    def __init__(
        self, keys: Keys, identifier: Identifier, downloads: DownloadStore | None = None
    ) -> None:
        super().__init__(keys, identifier)
        self._downloads = downloads or Downloads()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._waiting = 0

    def routes(self) -> Iterator[Route]:
        """`/translate_file` and `/download_file/{name}`."""
        yield Route(
            _PATH,
            self._translate_file,
            "Translate a file, in the form of LibreTranslate's API.",
            TranslatedFile,
            STATUSES,
            name="translate_file",
            content={MULTIPART: {"schema": form_of(FileBody, FILE)}},
            responses=FINISHED,
        )
        file = {
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
            "description": "The file.",
        }
        yield Route(
            "/download_file/{name}",
            self._download_file,
            "Fetch a translated file.",
            None,
            (404, 500),
            name="download_file",
            parameters=[path_parameter("name")],
            responses={200: file},
        )

    async def _translate_file(self, request: Request, service: Service) -> Response:
        fields, file = await read_authorised(request, service, self._keys)
        body = validate(FileBody, fields)
        if file is None or file.field != FILE or not file.name:
            raise InvalidRequest("file: Field required, as a file with a name", field=FILE)
        work = self._translate(file, body, service)
        content, translator = await within_time(request, service, work)
        name = self._downloads.put(_name(file.name, translator.target), content, key_name())
        base = str(service.settings.public_url or request.base_url).rstrip("/")
        url = f"{base}/download_file/{quote(name)}"
        answer = TranslatedFile(translated_file_url=url)
        return respond(TranslatedFile, answer, translator.finish_reason)

    async def _download_file(self, request: Request, service: Service) -> Response:
        name, content = self._downloads.get(request.path_params["name"])
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(
            content, media_type="application/octet-stream", headers=_DOWNLOAD_HEADERS | headers
        )

    async def _translate(
        self, file: Upload, body: FileBody, service: Service
    ) -> tuple[bytes, Translator]:
        in_process = service.in_process
        if self._waiting >= _MOST_WAITING:
            raise Overloaded("too many files are being translated", retry_after_s=1)
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            arguments = (file.name, file.content)
            expected_s = _S_PER_BYTE * len(file.content)
            passages = await in_process(expected_s, file_passages, *arguments)
            directions = Directions(service, self._identifier, _PATH, body.target)
            text = " ".join(passage.text for passage in passages)
            (source,), _ = await directions.sources([text], body.source)
            places = range(len(passages)) if len(passages) > 1 else ()
            translator = directions.translator(source, "segment", places)
            if translator.model is None or not passages:
                return file.content, translator
            done = await translator.passages(passages)
            content = await in_process(2 * expected_s, translated_file, *arguments, done)
            return content, translator
        finally:
            self._turns.release()


def _name(given: str, target: str) -> str:
    """Name of the translated file, of letters, digits, dots and dashes."""
    path = PurePosixPath(given.replace("\\", "/"))
    stem = _UNSAFE.sub("_", path.stem).strip(".")[:_LONGEST_NAME] or "file"
    return f"{stem}_{target}{path.suffix.lower()}"
