"""LibreTranslate's HTTP API.

Its clients know no models: the pair of languages chooses one. A request succeeds as a whole or not
at all, and may need several requests of the task: these routes await the service themselves.
"""

from __future__ import annotations

from pydantic import BaseModel

from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.libretranslate.dialect import LibreTranslateDialect
from serving.gateway.dialects.libretranslate.downloads import DownloadStore
from serving.gateway.dialects.libretranslate.files import FileDialect
from serving.gateway.dialects.libretranslate.languages import Identifier
from serving.gateway.dialects.libretranslate.messages import DetectBody, TranslateBody
from serving.gateway.http.router import RouteTable

MESSAGES: tuple[type[BaseModel], ...] = (DetectBody, TranslateBody)
"""Bodies of requests, for the OpenAPI document."""


def dialects(keys: Keys, downloads: DownloadStore | None = None) -> list[RouteTable]:
    """All routes.

    Args:
        keys: Required of every request that translates or identifies, if there are any.
        downloads: Keeps translated files; by default in memory.
    """
    identifier = Identifier()
    return [LibreTranslateDialect(keys, identifier), FileDialect(keys, identifier, downloads)]
