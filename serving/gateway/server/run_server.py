"""The gateway as a program: sockets, signals, draining."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

import grpc
import uvloop

from inference.bundle.repository import Repository
from inference.errors import SetupError
from serving.draining import await_drained
from serving.gateway.admission.admission import Counts, LocalCounts
from serving.gateway.admission.descriptors import Descriptors, limit_connections, raise_limit
from serving.gateway.dialects.libretranslate.downloads import DownloadStore
from serving.gateway.grpc.grpc_front import create_grpc_server
from serving.gateway.http.http_server import FLUSH_S, Connections, HttpServer
from serving.gateway.observability.background_tasks import BackgroundTasks
from serving.gateway.observability.metrics import Metrics
from serving.gateway.requests.catalog import load_catalog
from serving.gateway.requests.health import Readiness
from serving.gateway.requests.service import Service
from serving.gateway.requests.version_follower import VersionFollower
from serving.gateway.server.app import create_app
from serving.gateway.server.worker_context import Share
from serving.gateway.triton_client.endpoint import pair_sources
from serving.gateway.triton_client.pool import TritonPool
from serving.gateway.triton_client.triton_inference import TritonInference
from serving.logs import configure_logs
from serving.ports import listening
from serving.processes.supervision import STOP_SIGNALS, handle_signals
from serving.settings.gateway_settings import GatewaySettings

if TYPE_CHECKING:
    from serving.gateway.admission.redis_counts import RedisCounts

log = logging.getLogger(__name__)

_OVERDUE_S = 20
"""After the grace period: what runs then is logged, because stopping takes half of that."""
_COLLECT_EVERY = 50_000
"""Objects allocated and not freed between two runs of the garbage collector; Python's 700 are those
of a few requests in flight, 10,000 those of a hundred, whose runs took 3 % of the time."""


def run_gateway(settings: GatewaySettings) -> int:
    """Serve in this process until SIGTERM or SIGINT, then let requests finish and end it.

    Returns:
        The exit code of a gateway that could not start.
    """
    configure_logs(as_json=settings.json_output)
    await_drained(settings.host, {"http": settings.http_port, "grpc": settings.grpc_port}, log.info)
    return run(settings)


def run(settings: GatewaySettings, share: Share | None = None) -> int:
    """The same, with logs configured.

    Args:
        settings: Addresses and limits.
        share: What this process shares with other workers, if it is one.
    """
    try:
        uvloop.run(_serve(settings, on_loaded=_exempt_from_collection, share=share))
    except SetupError as error:
        log.error("cannot start: %s", error.message)
        return 1
    if share:
        share.close()
    logging.shutdown()
    os._exit(0)  # leaving Python waits for grpc's threads, at times for ever (grpc/grpc#40447)


def _exempt_from_collection() -> None:
    """Exempt all objects that exist now from garbage collection: they live as long as the process.

    Otherwise each full collection scans a hundred thousand of them: pauses of 0.1 s, which took,
    with the partial collections, a fifth of the gateway's time under load.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_EVERY)


async def _serve(
    settings: GatewaySettings,
    connect: Callable[[str], TritonInference] | None = None,
    on_loaded: Callable[[], None] | None = None,
    share: Share | None = None,
) -> None:
    """Both fronts over one service, until a signal.

    Args:
        settings: Addresses and limits.
        connect: Makes the connection to a Triton; None: over gRPC.
        on_loaded: Called once, when the models are loaded.
        share: What this process shares with other workers, if it is one.

    Raises:
        SetupError: a port is in use, or there is no repository.
    """
    descriptors = limit_connections(raise_limit(), settings.max_connections)
    repository = Repository(settings.repository)
    catalog = load_catalog(repository, settings.task_limits)
    http_socket = (
        share.http_socket if share else listening(settings.host, settings.http_port, "HTTP")
    )
    with contextlib.closing(http_socket):
        # Its counterpart runs when the last object of grpc.aio is freed, and may wait for ever for
        # the polling thread (grpc/grpc#40989): with this reference it never runs.
        grpc.aio.init_grpc_aio()
        metrics = share.metrics if share else Metrics()
        sources = pair_sources(settings.triton, settings.triton_metrics)
        moves = settings.recovery_timeout != 0
        tasks = BackgroundTasks(metrics.failed_in_background)
        connect = connect or partial(TritonInference, tasks=tasks)
        pool = TritonPool(sources, metrics, moves=moves, connect=connect)
        pool.start()
        counts: Counts = share.counts if share else LocalCounts()
        store = _store(settings, counts, metrics)
        service = Service(catalog, pool, settings, metrics, store or counts)
        follower = VersionFollower(repository, catalog, pool.served_version, settings.state)
        tasks.start("following of versions", follower.run)
        tasks.start("counting of stalls", lambda: count_stalls(metrics))
        if store is not None:
            await store.exchange()
            tasks.start("exchange of limits", store.run)
        try:
            readiness = Readiness(
                service,
                lambda: pool.endpoints,
                explain=lambda: catalog.problem or repository.problem or tasks.problem,
            )
            grpc_server, grpc_port = create_grpc_server(
                service, readiness, descriptors.grpc_connections, share.grpc_port if share else None
            )
            await grpc_server.start()
            ports = {"http_port": http_socket.getsockname()[1], "grpc_port": grpc_port}
            downloads = share.downloads if share else None
            http_server = _http_server(service, readiness, downloads, descriptors)
            if on_loaded:
                on_loaded()
            service.processes.start()
            log.info("listening", extra={**ports, "models": ",".join(catalog.names)})
            log.info("holds at most", extra=asdict(descriptors))
            if share:
                tasks.start("heartbeat", lambda: share.beat(lambda: service.waiting))
            await _until_signal(service, http_server, http_socket, grpc_server, share)
        finally:
            await tasks.close()
            await service.close()
    log.info("stopped")


def _store(settings: GatewaySettings, counts: Counts, metrics: Metrics) -> RedisCounts | None:
    """The counts with those of other gateways, if they share a store.

    Raises:
        SetupError: its client is not installed, or the address is not valid.
    """
    if settings.limits_store is None:
        return None
    try:
        module = import_module("serving.gateway.admission.redis_counts")
    except ModuleNotFoundError:
        raise SetupError(
            "a store of limits needs its client: pip install 'triptych[redis]', or unset "
            "--limits-store"
        ) from None
    try:
        store: RedisCounts = module.RedisCounts.at(
            settings.limits_store.get_secret_value(), counts, metrics
        )
    except ValueError:
        raise SetupError("--limits-store is not a valid address: give redis://HOST:PORT") from None
    return store


async def _until_signal(
    service: Service,
    http_server: HttpServer,
    http_socket: socket.socket,
    grpc_server: grpc.aio.Server,
    share: Share | None,
) -> None:
    """Serve; the first signal lets running requests finish, a second one ends them with an error.

    Meanwhile both fronts answer new requests with 503, instead of refusing connections.
    """
    grace_s = service.settings.graceful_termination_timeout
    stopping, hurrying = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    async def stop() -> None:
        await stopping.wait()
        service.is_draining = True
        log.info("draining", extra={"within_s": grace_s})
        loop = asyncio.get_running_loop()
        loop.call_later(grace_s + _OVERDUE_S, _log_overdue)
        async with asyncio.TaskGroup() as waits:
            drained = waits.create_task(service.admission.wait_until_drained(grace_s))
            drained.add_done_callback(lambda _: hurrying.set())
            await hurrying.wait()
            if left := service.admission.abort_all():
                log.warning("requests were aborted", extra={"requests": left})
        http_server.should_exit = True
        await grpc_server.stop(FLUSH_S)

    commands = share.follow(stopping.set, hurrying.set) if share else contextlib.nullcontext()
    with handle_signals(dict.fromkeys(STOP_SIGNALS, on_signal)), commands:
        async with asyncio.TaskGroup() as group:
            group.create_task(http_server.serve([http_socket]))
            group.create_task(stop())


def _log_overdue() -> None:
    log.error("still stopping; what runs: %s", "; ".join(running_tasks()))


def _http_server(
    service: Service,
    readiness: Readiness,
    downloads: DownloadStore | None,
    descriptors: Descriptors,
) -> HttpServer:
    settings = service.settings
    app = create_app(service, readiness, downloads=downloads)
    return HttpServer(
        app,
        Connections(
            most=descriptors.http_connections,
            read_timeout_s=settings.read_timeout,
            write_timeout_s=settings.write_timeout,
            most_unread_bytes=settings.payload_limit,
            metrics=service.metrics,
        ),
    )


STALL_S = 0.1
"""A shorter pause is not counted."""
_EVERY_S = 0.025


async def count_stalls(metrics: Metrics) -> None:
    """Measure until cancelled how late a short sleep ends."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + _EVERY_S
        await asyncio.sleep(_EVERY_S)
        late_s = loop.time() - due_s
        if late_s > STALL_S:
            metrics.event_loop_stalls.inc()
            metrics.event_loop_stalled_s.inc(late_s)


def running_tasks() -> list[str]:
    """One line for each task but the current one: its functions, outermost first."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    return sorted(f"{task.get_name()}: {' > '.join(_places(task.get_coro()))}" for task in tasks)


def _places(awaited: Any) -> list[str]:
    places = []
    while (frame := _frame(awaited)) is not None:
        places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        awaited = next(
            (getattr(awaited, name) for name in _AWAITED if hasattr(awaited, name)), None
        )
    return places or [repr(awaited)]


def _frame(awaited: Any) -> FrameType | None:
    found = (getattr(awaited, name, None) for name in _FRAMES)
    return next((frame for frame in found if frame is not None), None)


_FRAMES = ("cr_frame", "ag_frame", "gi_frame")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")
