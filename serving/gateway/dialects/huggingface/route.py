"""What the routes share: paths, bodies, errors; and the route of a model's first task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, BeforeValidator, Field

from inference.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ServingError,
    UnsupportedImage,
    UnsupportedMediaType,
)
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.all_or_nothing import ConvertedRequest, TaskRoute
from serving.gateway.http.bodies import (
    JSON,
    MULTIPART,
    check_is_json,
    is_json,
    media_type,
    read_json,
)
from serving.gateway.http.openapi import TASK_ERRORS, events, reference
from serving.gateway.http.router import Route, RouteTable, json_error, path_parameter, respond
from serving.gateway.requests.service import Service, TaskRequest
from triptych.messages import ClosedMessage, optional
from triptych.task import IMAGES

PARAMETERS: Mapping[str, str] = {
    "prompts": "inputs",
    "texts": "inputs",
    "images": "inputs",
    "source": "src_lang",
    "target": "tgt_lang",
    "labels": "candidate_labels",
    "pairs": "candidate_labels",
    "templates": "hypothesis_template",
    "aggregation": "aggregation_strategy",
    "n": "best_of",
}
"""Field of a task's message → its name in this API."""


class HuggingFaceError(BaseModel):
    """Body of every response with a status of 400 or more."""

    error: str
    error_type: str


def error_body(error: ServingError, names: Mapping[str, str] = PARAMETERS) -> HuggingFaceError:
    """The body of a failed request; `text_generation` of the client chooses a class by the type."""
    return HuggingFaceError(error=_message(error, names), error_type=_type(error))


def error_response(error: ServingError, names: Mapping[str, str] = PARAMETERS) -> Response:
    """The response of a failed request."""
    return json_error(error, error_body(error, names).model_dump_json())


def _type(error: ServingError) -> str:
    """TGI's names `validation`, `generation` and `overloaded`; of other errors our own."""
    if isinstance(error, InvalidRequest):
        return "validation"
    return "generation" if isinstance(error, DeadlineExceeded | InternalError) else error.wire


def _message(error: ServingError, names: Mapping[str, str]) -> str:
    """The message with the field's name in this API; it is the only place that names the field."""
    if error.field is None:
        return error.message
    name, _, rest = error.field.partition(".")
    given = names.get(name)
    if given is None:
        return error.message
    if rest:
        # A request has one text, image and template, or several labels and texts.
        is_one = rest == "0" and given in _SINGLE
        renamed = given if is_one else f"{given}.{rest}"
        return error.message.replace(error.field, renamed)
    # "texts" may also be a word of the message; a parameter is not.
    if given != "inputs" or error.message.startswith(name):
        return re.sub(rf"\b{name}\b", given, error.message, count=1)
    return error.message


_SINGLE = ("inputs", "inputs.question", "inputs.context", "hypothesis_template")
"""Names of fields that have one value in a request, where the task's message has a list."""

M = TypeVar("M", bound=BaseModel)

PLACEHOLDER = "file"
"""Stands for an image's bytes in the task's message."""
_RAW = "application/octet-stream"
IMAGE_KINDS = (_RAW, "image/")
"""Beginnings of the content types of images."""
_IMAGE = {_RAW: {"schema": {"type": "string", "format": "binary"}}}
MODEL = [path_parameter("model")]
SAMPLING = ("temperature", "top_k", "top_p", "typical_p")
TOKEN_EVENTS = "One token as JSON, or an error."


def _refuse(value: object) -> object:
    if value is not None and value is not False:
        raise ValueError("this parameter is not served: leave it out")
    return value


Unserved = Annotated[
    Literal[False] | None,
    BeforeValidator(_refuse),
    optional("Not served: refused, unless it is false."),
]

FinishReason = Annotated[
    Literal["stop", "length"],
    Field(description="Of this gateway; length: the limit of tokens cut the text."),
]


class Truncating(ClosedMessage):
    """Text Embeddings Inference's fields for texts that are too long."""

    truncate: bool | None = optional("Cut texts that are too long, instead of refusing them.")
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = optional(
        "With truncate: the end of a text that is cut off. Default: right."
    )

    def cuts(self) -> dict[str, Any]:
        """Both fields as those of a task's message."""
        end = (self.truncation_direction or "right").lower()
        return {"truncate": bool(self.truncate), "truncation_direction": end}


class PipelineTruncating(ClosedMessage):
    """The parameter of the pipelines of `transformers` for texts that are too long."""

    truncation: bool | Literal["longest_first", "only_first", "do_not_truncate"] | None = optional(
        "Cut texts that are too long, instead of refusing them."
    )

    @property
    def truncates(self) -> bool:
        """Whether texts are cut."""
        return self.truncation not in (None, False, "do_not_truncate")


class HuggingFaceRoute(TaskRoute):
    """`POST /hf/{task}/{model}` of one task, or a path of a server of one model."""

    error = HuggingFaceError
    renamed = PARAMETERS
    parameters = MODEL
    takes_images: ClassVar[bool] = False
    """Whether the body may be an image file itself."""
    fields: ClassVar[Mapping[str, str]] = {}
    """Field of the task's message → its path in the body."""

    def content(self) -> dict[str, Any]:
        """JSON, or an image file."""
        return {**super().content(), **(_IMAGE if self.takes_images else {})}

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """The body as JSON or as an image file, converted."""
        read = read_image if self.takes_images else read_json
        return self.convert(await read(request, self.body, service), request, service)

    def convert(self, body: Any, request: Request, service: Service) -> TaskRequest:
        """The fields that the body has; the task's defaults for others."""
        name = request.path_params.get("model")
        model = None if name is None else service.catalog.find(name)
        fields = self.take(body, model)
        images = [fields[IMAGES]] if IMAGES in fields else []
        if images:
            fields[IMAGES] = [PLACEHOLDER]
        message = self.task.declaration.request(model=name, **fields)
        if model is not None:
            self.check(message, model)
        return ConvertedRequest(self.task, message, label_of(request), images=images, body=body)

    def take(self, body: Any, model: LoadedModel | None) -> dict[str, Any]:
        """Fields of the task's message; `images` is the only image, as it was sent.

        Args:
            model: None where the path names none: the task's only one, or its default.

        Raises:
            InvalidRequest: fields that exclude each other.
        """
        if isinstance(body, bytes):
            return {IMAGES: body}
        found = {field: value_at(body, path) for field, path in self.fields.items()}
        return {field: value for field, value in found.items() if value is not None}

    def check(self, message: Any, model: LoadedModel) -> None:
        """Refuse what the model that the path names does not serve.

        Raises:
            InvalidRequest: it does not.
        """

    def render_error(self, error: ServingError) -> Response:
        """`{"error", "error_type"}` with the error's status."""
        return error_response(error, self.renamed)


def value_at(body: BaseModel, path: str) -> Any:
    """The value at a path like `parameters.top_k`; None where a part of it is absent."""
    found: Any = body
    for name in path.split("."):
        found = None if found is None else getattr(found, name)
    return found


def label_of(request: Request) -> str:
    """The route's template, which labels metrics."""
    path: str = request.scope["route"].path
    return path


async def read_image(request: Request, message: type[M], service: Service) -> M | bytes:
    """A JSON body as a message, or the bytes of an image.

    The client sends an image without parameters as it is, with any content type or none.

    Raises:
        UnsupportedMediaType: a form, or JSON under another content type.
        Overloaded: the gateway is full.
        ServingError: see `read_json`.
    """
    kind = media_type(request)
    if is_json(kind):
        return await read_json(request, message, service)
    if kind == MULTIPART:
        raise UnsupportedMediaType(f"this path takes an image's bytes, or {JSON}: send no form")
    body = await request.body()
    if body.lstrip()[:1] == b"{":
        check_is_json(request)
    service.check()
    return body


class FirstTaskRoute(RouteTable):
    """`POST /hf/{model}`: hands a request to the route of the first task of the model's manifest.

    Args:
        routes: One for each task.
    """

    error = HuggingFaceError

    def __init__(self, keys: Keys, routes: Sequence[HuggingFaceRoute]) -> None:
        super().__init__(keys)
        self._routes = {route.task.name: route for route in routes}

    def routes(self) -> list[Route]:
        """The only one, with the bodies and responses of all tasks."""
        bodies = [reference(route.body) for route in self._routes.values()]
        summary = "The first task of a model, for `huggingface_hub.InferenceClient`."
        route = Route(
            "/hf/{model}",
            self.require_key(self._serve),
            summary,
            Any,
            TASK_ERRORS,
            name="hf",
            content={JSON: {"schema": {"anyOf": bodies}}, **_IMAGE},
            parameters=MODEL,
            responses={200: events(TOKEN_EVENTS)},
        )
        return [route]

    async def _serve(self, request: Request, service: Service) -> Response:
        model = service.catalog.find(request.path_params["model"])
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

    def render_error(self, error: ServingError) -> Response:
        return error_response(error)
