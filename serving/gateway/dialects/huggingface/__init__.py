"""The HTTP API of `huggingface_hub.InferenceClient`, one file for routes of one kind.

`/hf/{task}/{model}` has the methods of one task, with our names of tasks; `/hf/{model}` those of
the first task of the model's manifest. The bodies do not say which method they are of: those of
masked, classified and embedded texts are alike.
`tgi_tei_routes` has the paths of Hugging Face's servers, which name no model.
"""

from __future__ import annotations

from pydantic import BaseModel

from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.huggingface.classification import ClassifyRoute
from serving.gateway.dialects.huggingface.generation import GenerateRoute
from serving.gateway.dialects.huggingface.images import CaptionRoute, DetectRoute, ZeroShotRoute
from serving.gateway.dialects.huggingface.route import FirstTaskRoute, HuggingFaceRoute
from serving.gateway.dialects.huggingface.texts import (
    AnswerRoute,
    EmbedRoute,
    FillMaskRoute,
    TagRoute,
    TranslateRoute,
)
from serving.gateway.dialects.huggingface.tgi_tei_routes import PredictBody, RerankBody
from serving.gateway.http.router import RouteTable

_ROUTES: tuple[type[HuggingFaceRoute], ...] = (
    AnswerRoute,
    CaptionRoute,
    ClassifyRoute,
    DetectRoute,
    EmbedRoute,
    FillMaskRoute,
    GenerateRoute,
    TagRoute,
    TranslateRoute,
    ZeroShotRoute,
)
MESSAGES: tuple[type[BaseModel], ...] = (
    *(route.body for route in _ROUTES),
    PredictBody,
    RerankBody,
)
"""Bodies of requests, for the OpenAPI document."""


def dialects(keys: Keys) -> list[RouteTable]:
    """The routes of `/hf`, each with its own form of answers.

    Args:
        keys: Required of every request, if there are any.
    """
    routes = [route(keys) for route in _ROUTES]
    return [*routes, FirstTaskRoute(keys, routes)]
