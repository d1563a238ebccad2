"""Ways to a task: the same fields in, the same response or error out.

A driver takes a gateway, a task and the fields of a request, with images as bytes. It returns the
task's response, or raises `Refused`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import httpx
from pydantic import BaseModel, ValidationError

import triptych
from inference.errors import ServingError
from inference.tasks import TASKS
from inference.tasks.shared.model_calls import Call, GenerateCall, Outcome
from inference.tasks.shared.served_task import Plan
from serving.gateway.requests.service import from_validation
from tests.serving.gateway.conftest import Gateway, error_of
from tests.serving.gateway.grpc.test_grpc_front import Front, failure, streamed_failure
from tests.serving.gateway.http.test_streams import pieces
from triptych import triptych_pb2 as pb
from triptych.client.base_client import Retries
from triptych.client.conversion import from_proto
from triptych.errors import ApiError, InvalidArgument
from triptych.messages import Chunk

Fields: TypeAlias = Mapping[str, Any]
Driver: TypeAlias = Callable[[Gateway, str, Fields], Awaitable[BaseModel]]


class Refused(Exception):
    """The error that a way ended with.

    Attributes:
        kind: Its type on the wire; None: a client refused it unsent.
        field: None too where a client refused it.
        status: Of HTTP, or gRPC's by its name.
        retry_after_s: After which the caller is to try again.
    """

    def __init__(
        self,
        kind: str | None,
        field: str | None,
        message: str,
        status: int | str | None = None,
        retry_after_s: Any = None,
    ) -> None:
        super().__init__(message)
        self.kind, self.field, self.message, self.status = kind, field, message, status
        self.retry_after_s = None if retry_after_s is None else float(retry_after_s)


async def in_process(gateway: Gateway, name: str, fields: Fields) -> BaseModel:
    """The task alone: `prepare`, its calls, `following`, `finish`."""
    task = TASKS[name]
    images = fields.get("images") or ()
    placeholders = {"images": ["beside" for _ in images]} if "images" in fields else {}
    try:
        request = task.declaration.request(**{**fields, **placeholders})
        plan: Plan | None = task.prepare(
            request, images, gateway.service.catalog.resolve(task, request)
        )
        while plan is not None:
            outcomes = [await _outcome(gateway, call) for call in plan.calls]
            last, plan = plan, plan.following(outcomes)
        return last.finish(outcomes)
    except ValidationError as error:
        raise _refused(from_validation(error)) from error
    except ServingError as error:
        raise _refused(error) from error


async def _outcome(gateway: Gateway, call: Call) -> Outcome:
    run = gateway.inference.generate if isinstance(call, GenerateCall) else gateway.inference.infer
    try:
        return await run(call, 9.0)
    except ServingError as error:
        return error


def _refused(error: ServingError) -> Refused:
    return Refused(error.wire, error.field, error.message, error.http_status, error.retry_after_s)


async def http(gateway: Gateway, name: str, fields: Fields) -> BaseModel:
    """JSON, with images as base64."""
    return _read(await _post(gateway, name, fields), TASKS[name].declaration.response)


async def _post(gateway: Gateway, name: str, fields: Fields) -> httpx.Response:
    images = [base64.b64encode(one).decode() for one in fields.get("images") or ()]
    body = {**fields, "images": images} if "images" in fields else fields
    return await gateway.http.post(TASKS[name].declaration.path, json=body)


async def multipart(gateway: Gateway, name: str, fields: Fields) -> BaseModel:
    """A form, with images as files and other fields as text."""
    declared = TASKS[name].declaration
    files = [("images", ("a.png", image)) for image in fields["images"]]
    beside = {key: _written(value) for key, value in fields.items() if key != "images"}
    response = await gateway.http.post(declared.path, files=files, data=beside)
    return _read(response, declared.response)


def _written(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, list) else str(value)


def _read(response: httpx.Response, kind: type[BaseModel]) -> BaseModel:
    if response.status_code == 200:
        return kind.model_validate_json(response.content)
    error = error_of(response)
    told = (error["type"], error.get("field"), error["message"])
    raise Refused(*told, response.status_code, response.headers.get("retry-after"))


async def rpc(gateway: Gateway, name: str, fields: Fields) -> BaseModel:
    """The method of the gRPC service; a stream's, where one is requested."""
    declared = TASKS[name].declaration
    request = getattr(pb, declared.request.__name__)(**fields)
    async with Front(gateway) as front:
        if fields.get("stream"):
            call = getattr(front.stub, f"{declared.verb}Stream")(request)
            return await _first(call)
        call = getattr(front.stub, declared.verb)(request)
        if await call.code() is grpc.StatusCode.OK:
            return from_proto(await call, declared.response)
        status, error, trailing = await failure(call)
    assert trailing["x-request-id"]
    told = (error.type, error.field or None, error.message)
    raise Refused(*told, status.name, trailing.get("retry-after"))


async def _first(call: grpc.aio.UnaryStreamCall) -> BaseModel:
    pieces, (status, kind, field, trailing) = await streamed_failure(call)
    assert pieces == []
    assert trailing["x-request-id"]
    raise Refused(kind, field or None, await call.details(), status.name)


@asynccontextmanager
async def connected(gateway: Gateway, kind: str) -> AsyncIterator[Any]:
    """A client of the package, over HTTP or gRPC."""
    once = Retries(attempts=1)
    if kind == "http client":
        transport = httpx.ASGITransport(gateway.app)
        async with triptych.AsyncClient(
            "http://gateway", transport=transport, retries=once
        ) as client:
            yield client
        return
    async with (
        Front(gateway) as front,
        triptych.AsyncGrpcClient(f"127.0.0.1:{front.port}", retries=once) as client,
    ):
        yield client


async def http_client(gateway: Gateway, name: str, fields: Fields) -> BaseModel:
    """A method of `AsyncClient`."""
    async with connected(gateway, "http client") as client:
        return await _call(client, name, fields)


async def grpc_client(gateway: Gateway, name: str, fields: Fields) -> BaseModel:
    """A method of `AsyncGrpcClient`."""
    async with connected(gateway, "grpc client") as client:
        return await _call(client, name, fields)


async def _call(client: Any, name: str, fields: Fields) -> BaseModel:
    method = TASKS[name].declaration.method
    try:
        if fields.get("stream"):
            given = {key: value for key, value in fields.items() if key != "stream"}
            return await anext(getattr(client, f"{method}_stream")(**given))
        return await getattr(client, method)(**fields)
    except (InvalidArgument, TypeError) as error:
        raise Refused(None, None, str(error)) from error
    except ApiError as error:
        told = (error.type, error.field, error.message)
        raise Refused(*told, error.status, error.retry_after_s) from error


async def chunks(gateway: Gateway, way: str, name: str, fields: Fields) -> list[Chunk]:
    """The chunks of a stream that comes to its end."""
    declared = TASKS[name].declaration
    if way == "http":
        return pieces((await _post(gateway, name, {**fields, "stream": True})).text)
    if way == "grpc":
        request = getattr(pb, declared.request.__name__)(**fields)
        async with Front(gateway) as front:
            method = getattr(front.stub, f"{declared.verb}Stream")
            call = method(request, metadata=(("x-request-id", "abc"),))
            found = [from_proto(piece, Chunk) async for piece in call]
            assert dict(await call.trailing_metadata())["x-request-id"] == "abc"
            return found
    async with connected(gateway, way) as client:
        return [chunk async for chunk in getattr(client, f"{declared.method}_stream")(**fields)]


DRIVERS: dict[str, Driver] = {
    "in process": in_process,
    "http": http,
    "multipart": multipart,
    "grpc": rpc,
    "http client": http_client,
    "grpc client": grpc_client,
}
