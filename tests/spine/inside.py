"""What is inside a running house: processes by `/proc`, an engine's numbers, shared memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from serving.heartbeat import EngineStats, read_engine_stats
from tests.spine.conftest import MODEL, PATIENCE_S, House

SHARED_MEMORY = Path("/dev/shm")


def descendants(pid: int) -> set[int]:
    """Processes below one, by /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while new := {child for child, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {pid}


def stub_of(pid: int, model: str) -> int:
    """The Triton stub process that serves a model, below a process."""
    for child in descendants(pid):
        arguments = words(child)
        if "triton_python_backend_stub" in arguments[0] and any(
            f"/{model}/" in argument for argument in arguments[1:]
        ):
            return child
    raise AssertionError(f"no stub serves {model}")


def triton_of(house: House) -> int:
    """Pid of tritonserver."""
    return next(pid for pid in living(house) if "tritonserver" in words(pid)[0])


def vitals(house: House, model: str = MODEL) -> EngineStats:
    """What a model's engine last published."""
    flag = next(word for word in words(triton_of(house)) if word.startswith("--metrics-port="))
    url = f"http://127.0.0.1:{flag.partition('=')[2]}/metrics"
    return read_engine_stats(httpx.get(url, trust_env=False, timeout=PATIENCE_S).text)[model]


def words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]


def living(house: House) -> set[int]:
    """Processes below the house's; zombies have given everything back but their number."""
    return {pid for pid in descendants(house.process.pid) if words(pid)[0]}


def handles(house: House) -> int:
    """Open files of the processes that stay: all but the models'."""
    stay = [pid for pid in living(house) if "stub" not in words(pid)[0]]
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in stay)


def prefix(house: House) -> str:
    """What the server's files in shared memory begin with."""
    return next(w for w in words(triton_of(house)) if "shm-region-prefix-name" in w).split("=")[-1]


def mapped_memory(house: House) -> set[Path]:
    """Files of shared memory that any of the house's processes uses, whatever their names."""
    used = set()
    for pid in living(house):
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            path = Path(line.split(maxsplit=5)[-1])
            if path.parent == SHARED_MEMORY:
                used.add(path)
    return used


def shared_memory(*prefixes: str) -> list[Path]:
    return [path for each in prefixes for path in SHARED_MEMORY.glob(f"{each}*")]


async def idle(house: House) -> bool:
    """Whether the engine says so twice, with a beat between."""
    first = vitals(house)
    await asyncio.sleep(0.6)
    second = vitals(house)
    return not (first.is_busy or second.is_busy) and second.beats > first.beats
