"""LibreTranslate's HTTP API.

Its clients know no models: the pair of languages chooses one. A request succeeds as a whole or not
at all, and may need several requests of the task: these routes await the service themselves.
"""

from __future__ import annotations

from pydantic import BaseModel, SecretStr

from serving.gateway.dialects.dialect import Routes
from serving.gateway.dialects.libretranslate.dialect import LibreTranslateDialect
from serving.gateway.dialects.libretranslate.files import FileDialect
from serving.gateway.dialects.libretranslate.identification import Identifier
from serving.gateway.dialects.libretranslate.messages import DetectBody, FileBody, TranslateBody

MESSAGES: tuple[type[BaseModel], ...] = (DetectBody, FileBody, TranslateBody)
"""Bodies of requests, for the OpenAPI document."""


def dialects(key: SecretStr | None) -> list[Routes]:
    """All routes.

    Args:
        key: Required of every request that translates or identifies, if given.
    """
    identifier = Identifier()
    return [LibreTranslateDialect(key, identifier), FileDialect(key, identifier)]
