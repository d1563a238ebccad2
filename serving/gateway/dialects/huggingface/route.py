"""What the routes share: key, path, bodies, answers, errors."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from inference.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ServingError,
    UnsupportedMediaType,
)
from inference.tasks.shared.loaded_model import LoadedModel
from inference.tasks.shared.served_task import AnyTask
from serving.gateway.admission.auth import Keys
from serving.gateway.dialects.all_or_nothing import Closed, WholeAnswers
from serving.gateway.http.bodies import (
    JSON,
    MULTIPART,
    check_is_json,
    is_json,
    media_type,
    read_json,
)
from serving.gateway.http.handle_request import respond
from serving.gateway.http.http_errors import json_error
from serving.gateway.http.openapi import SECURITY, errors, events
from serving.gateway.requests.service import Service, TaskRequest, TaskResponse
from triptych.parameters import optional

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
        is_one = rest == "0" and given in ("inputs", "hypothesis_template")
        renamed = given if is_one else f"{given}.{rest}"
        return error.message.replace(error.field, renamed)
    # "texts" may also be a word of the message; a parameter is not.
    if given != "inputs" or error.message.startswith(name):
        return re.sub(rf"\b{name}\b", given, error.message, count=1)
    return error.message


M = TypeVar("M", bound=BaseModel)

PLACEHOLDER = "file"
"""Stands for an image's bytes in the task's message."""
_RAW = "application/octet-stream"
IMAGE_KINDS = (_RAW, "image/")
"""Beginnings of the content types of images."""
_STATUSES = (400, 404, 413, 415, 422, 429, 500, 503, 504)
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}


def _refused(value: object) -> object:
    if value is not None and value is not False:
        raise ValueError("this parameter is not served: leave it out")
    return value


Unserved = Annotated[
    Literal[False] | None,
    BeforeValidator(_refused),
    optional("Not served: refused, unless it is false."),
]

FinishReason = Annotated[
    Literal["stop", "length"],
    Field(description="Of this gateway; length: the limit of tokens cut the text."),
]


class Truncating(Closed):
    """Text Embeddings Inference's fields for texts that are too long."""

    truncate: bool | None = optional("Cut texts that are too long, instead of refusing them.")
    truncation_direction: Literal["right", "left", "Right", "Left"] | None = optional(
        "With truncate: the end of a text that is cut off. Default: right."
    )

    def cuts(self) -> dict[str, Any]:
        """Both fields as those of a task's message."""
        end = (self.truncation_direction or "right").lower()
        return {"truncate": bool(self.truncate), "truncation_direction": end}


class PipelineTruncating(Closed):
    """The parameter of the pipelines of `transformers` for texts that are too long."""

    truncation: bool | Literal["longest_first", "only_first", "do_not_truncate"] | None = optional(
        "Cut texts that are too long, instead of refusing them."
    )

    @property
    def truncates(self) -> bool:
        """Whether texts are cut."""
        return self.truncation not in (None, False, "do_not_truncate")


class TaskRoute(WholeAnswers):
    """`POST /hf/{task}/{model}` of one task; implements `Dialect`."""

    task: ClassVar[AnyTask]
    body: ClassVar[type[BaseModel]]
    answer: ClassVar[Any]
    """Type of the response's body."""
    summary: ClassVar[str]
    takes_images: ClassVar[bool] = False
    """Whether the body may be an image file itself."""
    streams: ClassVar[bool] = False
    renamed: ClassVar[Mapping[str, str]] = PARAMETERS
    """Field of the task's message → its name here, in errors."""
    only_path: ClassVar[str | None] = None
    """A path that names no model, in place of `/hf/{task}/{model}`."""

    def __init__(self, keys: Keys) -> None:
        super().__init__(keys)
        self._adapter: TypeAdapter[Any] = TypeAdapter(self.answer)

    def router(self, service: Service) -> APIRouter:
        """The route."""
        router = APIRouter()

        async def endpoint(request: Request) -> Response:
            return await respond(self, request, self.task, service)

        router.add_api_route(
            self.only_path or f"/hf/{self.task.name}/{{model}}",
            endpoint,
            methods=["POST"],
            name=(self.only_path or f"hf_{self.task.name}").strip("/"),
            summary=self.summary,
            response_model=self.answer,
            **operation([self], has_key=self._keys.are_required),
        )
        return router

    def model_name(self, request: Request, service: Service) -> str | None:
        """The model of a request; None: the task's only one, or its default.

        Raises:
            UnknownModel: the path names one that is not served.
        """
        return model_of(request, service).name if self.only_path is None else None

    async def parse(self, request: Request, task: AnyTask, service: Service) -> TaskRequest:
        """See `Dialect.parse`."""
        read = read_image if self.takes_images else read_json
        return self.convert(await read(request, self.body, service), request, service)

    @abstractmethod
    def convert(self, body: Any, request: Request, service: Service) -> TaskRequest:
        """The image, or the body in the task's terms."""

    @abstractmethod
    def answered(self, request: TaskRequest, data: Sequence[Any]) -> object:
        """The body of the response, of items without errors.

        Raises:
            InvalidRequest: the answer cannot be given in the form that is requested.
        """

    def dump_answer(self, request: TaskRequest, response: TaskResponse) -> bytes:
        """See `WholeAnswers.dump_answer`."""
        return self._adapter.dump_json(self.answered(request, response.data))

    def render_error(self, error: ServingError) -> Response:
        """`{"error", "error_type"}` with the error's status."""
        return error_response(error, self.renamed)


def model_of(request: Request, service: Service) -> LoadedModel:
    """The model that the path names.

    Raises:
        UnknownModel: no model of that name is served.
    """
    return service.catalog.named(request.path_params["model"])


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


def operation(routes: Sequence[TaskRoute], *, has_key: bool) -> dict[str, Any]:
    """Arguments of `add_api_route` that document the bodies of some routes at one path."""
    takes_images = any(route.takes_images for route in routes)
    references = [{"$ref": f"#/components/schemas/{route.body.__name__}"} for route in routes]
    schema = references[0] if len(references) == 1 else {"anyOf": references}
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if takes_images:
        content[_RAW] = {"schema": {"type": "string", "format": "binary"}}
    statuses = (*_STATUSES, *((401,) if has_key else ()))
    described = errors(*statuses)
    for response in described.values():
        response["model"] = HuggingFaceError
    if any(route.streams for route in routes):
        described[200] = events("One token as JSON, or an error.")
    return {
        "responses": described,
        "openapi_extra": {
            "parameters": [] if any(route.only_path for route in routes) else [_MODEL],
            "requestBody": {"content": content, "required": True},
            **(SECURITY if has_key else {}),
        },
    }
