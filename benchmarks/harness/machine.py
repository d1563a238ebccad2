"""What the numbers were measured on."""

from __future__ import annotations

import importlib.metadata
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from inference.process_limits import usable_cores
from inference.processor import processor_kind, processor_name

FEATURES = ("amx_int8", "amx_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2")
LIBRARIES = ("onnxruntime", "ctranslate2", "transformers", "torch", "numpy")


def described() -> dict[str, Any]:
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
