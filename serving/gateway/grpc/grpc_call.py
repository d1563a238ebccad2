"""One gRPC call: its id, authorisation, log line, metrics and final status."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import grpc
from pydantic import ValidationError

from inference.errors import InternalError, ServingError
from serving.gateway.admission.auth import key_name
from serving.gateway.observability.metrics import CANCELLED, record, request_id
from serving.gateway.observability.trace_context import (
    TRACE,
    TRACEPARENT,
    TRACERESPONSE,
    TRACESTATE,
    parse,
)
from serving.gateway.requests.service import TIMEOUT_S, Service, from_validation
from triptych import messages
from triptych import triptych_pb2 as pb
from triptych.client.conversion import to_proto

log = logging.getLogger(__name__)

NAME: str = pb.DESCRIPTOR.services_by_name["Triptych"].full_name


def route_of(method: str) -> str:
    """Label of a method's metrics."""
    return f"/{NAME}/{method}"


class GrpcCall:
    """Context of one call; `end` sends its status.

    Args:
        metadata: Of the client; None: what `context` has, which takes long where it is large.
    """

    def __init__(
        self,
        method: str,
        context: Any,
        service: Service,
        metadata: Sequence[tuple[str, Any]] | None = None,
    ) -> None:
        self.response: Any = None
        self._method = method
        self._context = context
        self._service = service
        if metadata is None:
            metadata = context.invocation_metadata() or ()
        self._metadata = dict(metadata)
        headers = {
            name: [value for key, value in metadata if key == name]
            for name in (TRACEPARENT, TRACESTATE)
        }
        parent = parse(headers[TRACEPARENT], headers[TRACESTATE])
        self._trace = service.tracer.begin(parent)
        self._id = request_id(self._metadata.get("x-request-id"))
        self._started_s = time.perf_counter()
        self._error: ServingError | None = None

    async def __aenter__(self) -> GrpcCall:
        TRACE.set(self._trace)
        try:
            self._service.keys.check_header(self._metadata.get("authorization"))
            remaining_s = self._context.time_remaining()
            if remaining_s is not None:
                TIMEOUT_S.set(max(0.0, remaining_s))
        except ServingError as error:
            self._error = error
            self._record(error.wire)
            await self.end()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, _: object
    ) -> bool:
        """Record the call; its error is kept for `end`."""
        if isinstance(raised, Exception):
            self._error = _as_ours(raised, self._id)
        if self._error is not None:
            self._record(self._error.wire)
        else:
            self._record(CANCELLED if raised is not None else None)
        return self._error is not None

    async def end(self) -> None:
        """Send the trailing metadata; with an error, its status (which raises)."""
        trailing: list[tuple[str, str | bytes]] = [("x-request-id", self._id)]
        if self._trace is not None:
            trailing.append((TRACERESPONSE, self._trace.context.traceparent))
        if self._error is None:
            self._context.set_trailing_metadata(trailing)
        else:
            await _abort(self._context, self._error, trailing)

    def _record(self, failure: str | None) -> None:
        duration_s = time.perf_counter() - self._started_s
        route = route_of(self._method)
        record(
            self._service.metrics,
            route,
            duration_s,
            failure,
            self._trace,
            request_id=self._id,
            key=key_name(),
        )
        if self._trace is not None:
            self._trace.annotate(
                {"rpc.system": "grpc", "rpc.service": NAME, "rpc.method": self._method}
            )
            is_fault = self._error is not None and self._error.http_status >= 500
            self._trace.end(route[1:], failure, is_fault=is_fault)


def _as_ours(error: Exception, call_id: str) -> ServingError:
    if isinstance(error, ServingError):
        return error
    if isinstance(error, ValidationError):
        return from_validation(error)
    log.error("bug request_id=%s", call_id, exc_info=error)
    return InternalError("the gateway failed: its log has the cause under this id")


async def _abort(context: Any, error: ServingError, trailing: list[tuple[str, Any]]) -> None:
    body = messages.ErrorBody(type=error.wire, message=error.message, field=error.field)
    trailing.append(("triptych-error-bin", to_proto(body).SerializeToString()))
    if error.retry_after_s is not None:
        trailing.append(("retry-after", str(math.ceil(error.retry_after_s))))
    status = grpc.StatusCode[error.grpc_status]
    try:
        await context.abort(status, error.message, trailing_metadata=tuple(trailing))
    except grpc.aio.InternalError:  # gRPC itself has refused the message, or the client has left
        raise asyncio.CancelledError from None
