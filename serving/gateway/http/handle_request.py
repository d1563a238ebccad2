"""The course of one HTTP request of a task, the same in every dialect."""

from __future__ import annotations

from fastapi import Request, Response

from inference.tasks.shared.served_task import AnyTask
from serving.gateway.http.dialect import Dialect
from serving.gateway.http.disconnect import unless_disconnected
from serving.gateway.http.event_stream import EventStream
from serving.gateway.observability.timings import Timings
from serving.gateway.requests.chunk_stream import ChunkStream
from serving.gateway.requests.service import Service
from serving.gateway.requests.task_request import TaskRequest


async def respond(dialect: Dialect, request: Request, task: AnyTask, service: Service) -> Response:
    """Authorise, parse, serve and render one request.

    Raises:
        ServingError: it failed; `ErrorRenderer` makes a response of the error.
        ClientDisconnect: the client disconnected.
    """
    dialect.authorise(request.headers)
    parsed = await service.completed(await dialect.parse(request, task, service))
    if parsed.streams:
        return await _streamed(dialect, request, parsed, service.stream(parsed))
    answer, timings = await unless_disconnected(request.receive, service.answer(parsed))
    response = dialect.render_answer(parsed, answer)
    response.headers.update(_timing_headers(dialect, timings))
    return response


async def _streamed(
    dialect: Dialect, request: Request, parsed: TaskRequest, stream: ChunkStream
) -> Response:
    """The stream, once it has a first chunk: an error before it has a status of its own."""
    try:
        await unless_disconnected(request.receive, stream.first())
    except BaseException:
        await stream.close()
        raise
    headers = _timing_headers(dialect, stream.timings)
    return EventStream(stream, dialect.render_stream(parsed), headers)


def _timing_headers(dialect: Dialect, timings: Timings | None) -> dict[str, str]:
    """Milliseconds, so that a slow response shows its own cause."""
    if timings is None or not dialect.shows_timings:
        return {}
    return {
        "x-tokenization-time": f"{timings.tokenization_s * 1000:.1f}",
        "x-queue-time": f"{timings.queue_s * 1000:.1f}",
        "x-inference-time": f"{timings.inference_s * 1000:.1f}",
    }
