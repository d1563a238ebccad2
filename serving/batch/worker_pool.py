"""How many workers fit on machines, and what each of them has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from inference.bundle.manifest import Bundle
from inference.engine.scheduler import Capacity
from inference.process_limits import available_bytes, usable_cores
from serving.batch.job import BatchSettings
from triptych.errors import InvalidArgument

_PROCESS_BYTES = 512 << 20
"""Of a worker without its model: Python, libraries, the rows of its shards."""
_SHARE = 0.9
"""Of this machine's free memory that workers may need together."""


@dataclass(frozen=True)
class Pool:
    """The workers of a run, all alike."""

    workers: int
    threads: int
    memory_bytes: int


def this_machine() -> tuple[int, int]:
    """Cores of this machine that this process may use, and bytes of memory for workers."""
    return usable_cores(), int(_SHARE * available_bytes())


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


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
