"""The routes below `/v2`: metadata, readiness of a model, inference."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from inference.bundle.manifest import Role
from inference.errors import InvalidRequest, ServingError, Unavailable, UnsupportedMediaType
from inference.tasks.shared.model_calls import Call
from serving.gateway.dialects.open_inference.tensors import (
    InferAnswer,
    InferBody,
    InferenceError,
    ModelMetadata,
    ModelReady,
    ServerMetadata,
    TensorPlan,
    graph_of,
)
from serving.gateway.http.bodies import JSON, read_json
from serving.gateway.http.openapi import TASK_ERRORS, json_content
from serving.gateway.http.router import Route, RouteTable, path_parameter, unless_disconnected
from serving.gateway.observability.trace_context import TRACE
from serving.gateway.requests.service import ReservePixels, Service
from triptych import __version__

_BINARY = "inference-header-content-length"
"""Header of a body whose tensors follow its JSON, as Triton's client sends them by default."""
PATH = "/v2/models/{model}/infer"


class OpenInferenceDialect(RouteTable):
    """The Open Inference Protocol."""

    error = InferenceError

    def routes(self) -> Iterator[Route]:
        """`/v2` and the paths of a model."""
        model = [path_parameter("model")]
        yield Route(
            "/v2",
            self.require_key(self._server),
            "Describe the server.",
            ServerMetadata,
            (500, 401),
            name="open_inference_server",
        )
        yield Route(
            "/v2/models/{model}",
            self.require_key(self._model),
            "Describe a model's tensors.",
            ModelMetadata,
            (404, 500, 401),
            name="open_inference_model",
            parameters=model,
        )
        yield Route(
            "/v2/models/{model}/ready",
            self.require_key(self._ready),
            "Whether a model responds.",
            ModelReady,
            (404, 500, 503, 401),
            name="open_inference_ready",
            parameters=model,
        )
        yield Route(
            PATH,
            self.require_key(self._infer),
            "Run a stateless model on tensors.",
            InferAnswer,
            TASK_ERRORS,
            name="open_inference_infer",
            content=json_content(InferBody),
            parameters=model,
        )

    def render_error(self, error: ServingError) -> Response:
        """`{"error": "…"}` with the error's status."""
        response = _json(InferenceError(error=error.message), error.http_status)
        if error.retry_after_s is not None:
            response.headers["retry-after"] = str(math.ceil(error.retry_after_s))
        if error.http_status == 413:
            response.headers["connection"] = "close"  # the rest of the body is not read
        return response

    async def _server(self, request: Request, service: Service) -> Response:
        return _json(ServerMetadata(name="triptych", version=__version__, extensions=[]))

    async def _model(self, request: Request, service: Service) -> Response:
        graph = graph_of(service.catalog.models, request.path_params["model"])
        return _json(
            ModelMetadata(
                name=graph.part.model,
                versions=[str(graph.part.version)],
                platform=graph.model.manifest.runtime,
                inputs=graph.inputs,
                outputs=graph.outputs,
            )
        )

    async def _ready(self, request: Request, service: Service) -> Response:
        part = graph_of(service.catalog.models, request.path_params["model"]).part
        if not await service.calls.pool.is_ready(part.model, part.version):
            raise Unavailable(f"{part.model} is not ready", retry_after_s=1)
        return _json(ModelReady(name=part.model, ready=True))

    async def _infer(self, request: Request, service: Service) -> Response:
        name = request.path_params["model"]
        graph_of(service.catalog.models, name)  # before the body is read
        if _BINARY in request.headers:
            raise UnsupportedMediaType(
                "tensors are sent as JSON: binary_data=False in Triton's client"
            )
        body = await read_json(request, InferBody, service)
        if body.model_name not in (None, name):
            raise InvalidRequest("model_name is not the model of the path", field="model_name")
        planned = _TensorPlanner(service, body, name)
        work = service.answer_plan(PATH, planned.plan)
        answer, _ = await unless_disconnected(request.scope, request.receive, work)
        return _json(
            InferAnswer(
                model_name=answer.model,
                model_version=str(planned.graph.part.version),
                id=body.id,
                outputs=[item.tensor for item in answer.data],
            )
        )


class _TensorPlanner:
    """Plans one request.

    Attributes:
        graph: That of the last plan.
    """

    def __init__(self, service: Service, body: InferBody, name: str) -> None:
        self.graph = graph_of(service.catalog.models, name)
        self._service, self._body = service, body

    async def plan(self, reserve: ReservePixels, unloaded: Call | None) -> TensorPlan | None:
        """See `MakePlan`."""
        service = self._service
        if unloaded and not await service.is_served_again(self.graph.model, unloaded):
            return None
        graph = graph_of(service.catalog.models, self.graph.part.model)
        if (trace := TRACE.get()) is not None:
            trace.annotate({"triptych.model": graph.model.name})
        self.graph = graph
        size = sum(len(tensor.data) for tensor in self._body.inputs)
        call = await service.in_pool(size, graph.call, self._body)
        for name, role in ((each.name, each.role) for each in graph.part.graph.inputs):
            if role is Role.PIXELS:
                rows, height, width, _ = call.inputs[name].shape
                await reserve(rows * height * width)
        return TensorPlan(graph, (call,))


def _json(message: BaseModel, status: int = 200) -> Response:
    content = message.model_dump_json(exclude_none=True)
    return Response(content, status_code=status, media_type=JSON)
