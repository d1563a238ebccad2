"""What the numbers were measured on, processor seconds by part, and files of results."""

from __future__ import annotations

import importlib.metadata
import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil

from inference.process_limits import processor_kind, processor_name, usable_cores
from serving.processes.process_table import children

FEATURES = ("amx_int8", "amx_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
LIBRARIES = ("onnxruntime", "ctranslate2", "transformers", "torch", "numpy")


def describe() -> dict[str, Any]:
    """Processor, cores, instructions that matter, bandwidth, versions."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "instructions": [flag for flag in FEATURES if flag in _flags()],
        "read_gb_per_s": round(read_bandwidth() / 1e9, 1),
        "versions": {name: _version(name) for name in LIBRARIES},
    }


def processor() -> str:
    """Its model and its kind: every file of results states them."""
    return f"{processor_name()}, {processor_kind()}"


def _version(library: str) -> str | None:
    """None for a peer that is not installed: `--only triptych` needs none."""
    if library == "onnxruntime":  # its package has another name with CUDA
        return str(onnxruntime.__version__)
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def load() -> float:
    """Load average of the last minute, this process included."""
    return round(os.getloadavg()[0], 2)


def read_bandwidth() -> float:
    """Bytes a second that all cores together sum up, best of five; far beyond the caches."""
    cores = usable_cores()
    parts = np.split(np.ones(cores * 2**25, np.float32), cores)
    seconds = []
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            started_s = time.perf_counter()
            list(pool.map(np.sum, parts))
            seconds.append(time.perf_counter() - started_s)
    return cores * parts[0].nbytes / min(seconds)


def _flags() -> set[str]:
    path = Path("/proc/cpuinfo")
    return set(path.read_text().split()) if path.is_file() else set()


CLIENT = "client"
"""This process; the engine is in it where it runs in process."""
OTHER = "other"
"""Processes that are not ours."""
_PARTS = {"python_backend_stub": "engine", "tritonserver": "triton"}
_COMMANDS = {"gateway": "gateway", "triton": "supervisor", "serve": "supervisor"}


class Processes:
    """The processes that run at construction: listing them takes longer than what is measured."""

    def __init__(self) -> None:
        self._parts = {os.getpid(): CLIENT}
        waiting = children(os.getpid())
        while waiting:
            pid, arguments = waiting.popitem()
            self._parts[pid] = part_of(arguments)
            waiting |= children(pid)

    def cpu_seconds(self) -> dict[str, float]:
        """By part; a part that has several processes has the sum."""
        found = dict.fromkeys(self._parts.values(), 0.0)
        for pid, part in self._parts.items():
            found[part] += _seconds(pid)
        return found


def part_of(arguments: tuple[str, ...]) -> str:
    """The part of `triptych serve` that a process belongs to."""
    program = Path(arguments[0]).name if arguments else ""
    for name, part in _PARTS.items():
        if name in program:
            return part
    return next((_COMMANDS[word] for word in arguments if word in _COMMANDS), OTHER)


def _seconds(pid: int) -> float:
    """User and system time; 0 for a process that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def write_json(report: Any, file: Path) -> None:
    """Written whole, or not at all; values that JSON lacks as text."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, ensure_ascii=False, default=str) + "\n"
    staged = file.with_suffix(".partial")
    staged.write_text(text, encoding="utf-8")
    staged.replace(file)


def markdown(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *lines])
