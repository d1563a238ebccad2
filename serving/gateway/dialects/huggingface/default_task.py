"""`POST /hf/{model}`: the route of the first task of the model's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from inference.errors import InvalidRequest, ServingError, UnsupportedImage
from serving.gateway.admission.auth import KeyedRoutes, Keys
from serving.gateway.dialects.huggingface.route import (
    IMAGE_KINDS,
    TaskRoute,
    error_response,
    model_of,
    operation,
)
from serving.gateway.http.handle_request import respond
from serving.gateway.requests.service import Service


class FirstTaskRoute(KeyedRoutes):
    """Hands a request to the route of a task; implements `Routes`."""

    def __init__(self, keys: Keys, routes: Sequence[TaskRoute]) -> None:
        super().__init__(keys)
        self._routes = {route.task.name: route for route in routes}

    def router(self, service: Service) -> APIRouter:
        """The route."""
        router = APIRouter()

        async def endpoint(request: Request) -> Response:
            self.authorise(request.headers)
            model = model_of(request, service)
            first = next(iter(model.sections))
            route = self._routes.get(first)
            if route is None:
                served = [name for name in model.sections if name in self._routes]
                paths = ", ".join(f"/hf/{name}/{model.name}" for name in served) or "none"
                raise InvalidRequest(
                    f"{model.name} is for {first} first, which no method here is for; "
                    f"its paths with methods are: {paths}",
                    field="model",
                )
            kind = request.headers.get("content-type", "").lower()
            if kind.startswith(IMAGE_KINDS) and not route.takes_images:
                raise UnsupportedImage(f"{first} of {model.name} takes no image: send JSON")
            return await respond(route, request, route.task, service)

        router.add_api_route(
            "/hf/{model}",
            endpoint,
            methods=["POST"],
            name="hf",
            summary="The first task of a model, for `huggingface_hub.InferenceClient`.",
            response_model=Any,
            **operation(list(self._routes.values()), has_key=self._keys.are_required),
        )
        return router

    def render_error(self, error: ServingError) -> Response:
        """`{"error", "error_type"}` with the error's status."""
        return error_response(error)
