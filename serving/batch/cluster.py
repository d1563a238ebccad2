"""Ray: the workers of a run on the nodes of a cluster, and their shards through Ray Data.

An address is checked before Ray connects: Ray itself tries for ten minutes.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from serving.batch.shards import Shard
from serving.batch.worker import IN_PROGRESS, Report, Worker, WorkerSettings, error_line
from serving.batch.worker_pool import Pool
from triptych.errors import InvalidArgument, TriptychError

if TYPE_CHECKING:
    from serving.batch.job import Manifest

_MOST_TASKS = 2000
"""Ray keeps each task's input in memory; with more shards, a task has several."""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    "RAY_gcs_rpc_server_connect_timeout_s": "2",
    "RAY_py_gcs_connect_timeout_s": "5",
}
"""Of Ray, where nothing else is set: with its defaults it tries for ten minutes to connect."""
_ADDRESS = re.compile(r"\[?(?P<host>[^\[\]/]+?)\]?:(?P<port>\d{1,5})")
_TIMEOUT_S = 5.0
"""To connect, and again to get the first bytes."""
_MAX_PORT = 65535
_SETTINGS = 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
"""A client's first bytes of HTTP/2, which Ray speaks as gRPC does (RFC 9113, section 3.4): the
preface and an empty frame of settings. A server answers with a frame of settings."""
_HEADER_BYTES = 9
"""Of a frame: length (3), type (1), flags (1), stream (4)."""
HINT = "give HOST:PORT of a running cluster's head (its --port, 6379 by default)"


@contextmanager
def cluster(address: str) -> Iterator[None]:
    """A connection to Ray until the block ends.

    Raises:
        TriptychError: there is no cluster at the address.
    """
    check_address(address)
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        with chdir("/"):  # Ray's workers import from the driver's folder before all others
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise TriptychError(f"--address: no Ray at {address}: {reason}: {HINT}") from None
    try:
        yield
    finally:
        ray.shutdown()


def live_nodes() -> list[tuple[int, int]]:
    """Cores and bytes of memory of each node of the cluster."""
    import ray

    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(int(one.get("CPU", 0)), int(one.get("memory", 0))) for one in resources]


def cluster_reports(
    manifest: Manifest, shards: Iterable[Shard], settings: WorkerSettings, pool: Pool
) -> Iterator[Report]:
    """The report of each shard, as workers finish them.

    A worker that dies is started again, on another node where its own is lost; the shards that it
    had are made again.

    Raises:
        TriptychError: a worker cannot open the model, read the input, or write the output.
    """
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.verbose_progress = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    rows = [{"shard": shard.model_dump_json()} for shard in shards]
    tasks = ray.data.from_items(rows, override_num_blocks=min(len(rows), _MOST_TASKS))
    done = tasks.map(
        _RayWorker,
        fn_constructor_args=(manifest.job, manifest.source, settings),
        compute=ray.data.ActorPoolStrategy(
            min_size=1,
            max_size=pool.workers,
            initial_size=pool.workers,
            max_tasks_in_flight_per_actor=2 * IN_PROGRESS,
            max_concurrent_calls_per_actor=IN_PROGRESS,
            enable_true_multi_threading=True,
        ),
        num_cpus=pool.threads,
        memory=pool.memory_bytes,
    )
    for batch in done.iter_batches(batch_size=1, prefetch_batches=0, batch_format="numpy"):
        found = {name: column.tolist()[0] for name, column in batch.items()}
        if failure := found.pop("failure"):
            raise TriptychError(f"a worker failed: {failure}")
        yield Report(**found)


class _RayWorker:
    """A worker as Ray Data calls it.

    Ray would show what it raises as a hundred lines on stderr, and start it again while it starts.
    """

    def __init__(self, *given: Any) -> None:
        self._worker: Worker | None = None
        self._failure = ""
        try:
            self._worker = Worker(*given)
        except Exception as error:  # the edge of the process: the driver ends the run with it
            self._failure = error_line(error)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Make the file of one shard.

        Args:
            row: `shard`: the shard as JSON.

        Returns:
            The fields of its report, and `failure`: why there is none, else empty.
        """
        shard = Shard.model_validate_json(row["shard"])
        report, failure = Report(shard.number, 0, 0, 0, 0.0), self._failure
        if self._worker is not None:
            try:
                report = self._worker.make(shard)
            except Exception as error:  # the edge of the process, as above
                failure = error_line(error)
        return {**asdict(report), "failure": failure}


def check_address(address: str) -> None:
    """Check that something at an address may be a Ray cluster.

    Args:
        address: HOST:PORT, or `auto`, which Ray resolves on this machine.

    Raises:
        InvalidArgument: the address has another form, or no Ray answers there.
    """
    if address == "auto":
        return
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) <= _MAX_PORT:
        raise InvalidArgument(f"--address: {address} is not HOST:PORT or auto: {HINT}")
    host, port = found["host"], int(found["port"])
    if (reason := _reason(host, port)) is not None:
        raise InvalidArgument(f"--address: no Ray at {address}: {reason}: {HINT}")


def _reason(host: str, port: int) -> str | None:
    """Why there is no Ray; None: there may be."""
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            if _uses_tls():
                return None
            connection.sendall(_GREETING)
            header = _receive_header(connection)
            is_whole = len(header) == _HEADER_BYTES
            if is_whole and header[3] == _SETTINGS and not any(header[5:]):
                return None
    except TimeoutError:
        return f"nothing came in {_TIMEOUT_S:.0f} s"
    except ConnectionRefusedError:
        return "no process listens on that port"
    except (ConnectionResetError, BrokenPipeError):
        pass
    except (socket.gaierror, UnicodeError):
        return f"the name {host} has no address"
    except OSError as error:
        return error.strerror or type(error).__name__
    return "what listens on that port is not Ray"


def _receive_header(connection: socket.socket) -> bytes:
    """The header of the first frame; less, if the connection is closed before."""
    header = b""
    while len(header) < _HEADER_BYTES and (more := connection.recv(_HEADER_BYTES - len(header))):
        header += more
    return header


def _uses_tls() -> bool:
    """Whether Ray encrypts, and answers no greeting that is not."""
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
