"""Ray: a cluster for one run, the workers that fit on it, and their shards through Ray Data."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from inference.bundle.manifest import Bundle
from inference.engine.scheduler import Capacity
from serving.batch.settings import BatchSettings
from serving.batch.shards import Shard
from serving.batch.worker import IN_PROGRESS, Report, Worker, WorkerSettings
from triptych.errors import InvalidArgument, TriptychError

if TYPE_CHECKING:
    from serving.batch.job import Manifest

log = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 128 << 20
"""Of a cluster that this process starts: only shards' places and reports pass through it."""
_PROCESS_BYTES = 512 << 20
"""Of a worker without its model: Python, libraries, the rows of its shards."""
_MOST_TASKS = 2000
"""Ray keeps each task's input in memory; with more shards, a task has several."""


@dataclass(frozen=True)
class Pool:
    """The workers of a run, all alike."""

    workers: int
    threads: int
    memory_bytes: int


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """A connection to Ray, or a cluster on this machine until the block ends.

    Raises:
        TriptychError: there is no cluster at the address.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    options: dict[str, Any] = {"address": address}
    if address is None:
        # Access to Ray's ports allows running code: they are on loopback, and need a token.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # Without clusters Ray takes 127.0.0.1 as this machine's address, on Linux too.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        options = {
            "address": "local",
            "_node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "num_cpus": len(os.sched_getaffinity(0)),
            "object_store_memory": _OBJECT_STORE_BYTES,
        }
    import ray

    try:
        ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise TriptychError(
            f"cannot use Ray{f' at {address}' if address else ''}: {error}"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def worker_bytes(bundle: Bundle, capacity: Capacity) -> int:
    """Memory that a worker may need: the graphs twice, as a runtime repacks weights, and caches."""
    repository = bundle.folder.parent.parent
    folders = {repository / part / str(bundle.version) for part in bundle.manifest.parts.values()}
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    caches = capacity.state_bytes + capacity.prefix_bytes
    held = 0 if bundle.manifest.generator is None else caches
    return 2 * sum(file.stat().st_size for file in files) + held + _PROCESS_BYTES


def plan_pool(nodes: Iterable[tuple[int, int]], needed: int, settings: BatchSettings) -> Pool:
    """The workers that fit.

    Args:
        nodes: Cores and bytes of memory of each.
        needed: Bytes of a worker.

    Raises:
        InvalidArgument: none fits, or fewer than `--workers`.
    """
    nodes = [(cores, memory) for cores, memory in nodes if cores]
    threads = settings.threads
    if threads is None:
        cores, memory = max(nodes, default=(0, 0))
        threads = -(-cores // max(1, min(cores, memory // needed)))
    threads = max(1, threads)
    fit = sum(min(cores // threads, memory // needed) for cores, memory in nodes)
    workers = settings.workers or fit
    if not fit or workers > fit:
        have = ", ".join(f"{cores} cores and {_gib(memory)}" for cores, memory in nodes)
        raise InvalidArgument(
            f"{workers or 'no'} workers of {threads} cores and {_gib(needed)} do not fit on nodes "
            f"of {have or 'no cores'}: give --worker-memory, --state-memory, --threads or --workers"
        )
    return Pool(workers, threads, needed)


def live_nodes() -> list[tuple[int, int]]:
    """Cores and bytes of memory of each node of the cluster."""
    import ray

    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(int(one.get("CPU", 0)), int(one.get("memory", 0))) for one in resources]


def reports(
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
            self._failure = _reported(error)

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
                failure = _reported(error)
        return {**asdict(report), "failure": failure}


def _reported(error: Exception) -> str:
    """An error on one line; its traceback is in the worker's log."""
    log.error("the worker failed", exc_info=error)
    text = " ".join(str(error).split())
    return text if isinstance(error, TriptychError | OSError) else f"{type(error).__name__}: {text}"


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
