"""State of a running stack: its processes, engine counters and shared memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil

from serving.liveness.stall_detector import EngineStats, read_engine_stats
from serving.local_http import request
from tests.e2e.conftest import MODEL, TIMEOUT_S, Stack

SHARED_MEMORY = Path("/dev/shm")


def descendants(pid: int) -> set[int]:
    """Process ids below one, zombies included."""
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def stub_of(pid: int, model: str) -> int:
    """Process id of the Triton stub that runs a model, below a process."""
    for child in descendants(pid):
        arguments = command_line(child)
        if "triton_python_backend_stub" in arguments[0] and any(
            f"/{model}/" in argument for argument in arguments[1:]
        ):
            return child
    raise AssertionError(f"no stub runs {model}")


def triton_of(stack: Stack) -> int:
    """Process id of `tritonserver`."""
    return next(pid for pid in alive_processes(stack) if "tritonserver" in command_line(pid)[0])


def engine_stats(stack: Stack, model: str = MODEL) -> EngineStats:
    """The counters that a model's engine published last."""
    flag = next(
        argument
        for argument in command_line(triton_of(stack))
        if argument.startswith("--metrics-port=")
    )
    server = f"127.0.0.1:{flag.partition('=')[2]}"
    metrics = request(server, "GET", "/metrics", TIMEOUT_S).body.decode()
    return read_engine_stats(metrics)[model]


def command_line(pid: int) -> list[str]:
    """Arguments of a process; one empty argument for a zombie and for a process that ended."""
    try:
        return psutil.Process(pid).cmdline() or [""]
    except psutil.Error:
        return [""]


def alive_processes(stack: Stack) -> set[int]:
    """Process ids below the stack's, without zombies, which hold nothing but their number."""
    return {pid for pid in descendants(stack.process.pid) if command_line(pid)[0]}


def open_files(stack: Stack) -> int:
    """Number of open file descriptors of all processes but the models' stubs."""
    stay = [pid for pid in alive_processes(stack) if "stub" not in command_line(pid)[0]]
    return sum(psutil.Process(pid).num_fds() for pid in stay)


def shm_prefix(stack: Stack) -> str:
    """Prefix of the names of the server's files in shared memory."""
    arguments = command_line(triton_of(stack))
    return next(a for a in arguments if "shm-region-prefix-name" in a).split("=")[-1]


def mapped_memory(stack: Stack) -> set[Path]:
    """Files of shared memory that any process of the stack has mapped."""
    paths = {
        Path(region.path)
        for pid in alive_processes(stack)
        for region in psutil.Process(pid).memory_maps()
    }
    return {path for path in paths if path.parent == SHARED_MEMORY}


def shared_memory(*prefixes: str) -> list[Path]:
    """Files of shared memory with these prefixes."""
    return [path for each in prefixes for path in SHARED_MEMORY.glob(f"{each}*")]


def resources(stack: Stack) -> tuple[int, int, int]:
    """Numbers of processes, open files and shared-memory regions that a stack holds."""
    regions = shared_memory(shm_prefix(stack))
    return len(alive_processes(stack)), open_files(stack), len(regions)


async def idle(stack: Stack) -> bool:
    """Whether the engine reports to be idle twice, with a heartbeat between."""
    first = engine_stats(stack)
    await asyncio.sleep(0.6)
    second = engine_stats(stack)
    return not (first.is_busy or second.is_busy) and second.beats > first.beats
