"""The device under test, and the same bundle on the CPU beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.bundle.manifest import Bundle
from inference.engine.runners.cuda.device import AddressDevice, CudaDevice
from inference.engine.runners.cuda.runtime import CudaRuntime
from inference.engine.runners.cuda.tensors import GRAPH_LIMIT
from inference.engine.runners.ort.runner import OrtRunner

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Card:
    """A card by its number. Tests replace it by host memory."""

    number: int = 0

    @property
    def name(self) -> str:
        """What the driver calls it."""
        runtime = CudaRuntime(self.number)
        try:
            return runtime.name
        finally:
            runtime.close()

    def device(self, *, captures: bool = True) -> AddressDevice:
        """A device of its own stream and sessions."""
        return CudaDevice(self.number, GRAPH_LIMIT if captures else 0)

    def runner(self, bundle: Bundle, *, captures: bool = True) -> OrtRunner:
        """The runner that serves a generator on the card."""
        return OrtRunner(bundle, 1, device=self.device(captures=captures))


def bandwidth(device: AddressDevice, nbytes: int = 1 << 30) -> float:
    """Bytes a second that the device reads, from copies on it, which read and write: best of five.

    Raises:
        MemoryError: the device has less than twice as much memory.
    """
    source, target = (device.allocate(nbytes // 4, "float32") for _ in range(2))
    one = device.entries(source, 0, 1)
    seconds = []
    for _ in range(5):
        device.fetch(one)  # waits for what is queued
        started_s = time.perf_counter()
        device.copy(source, target)
        device.fetch(one)
        seconds.append(time.perf_counter() - started_s)
    return 2 * nbytes / min(seconds)


def differences(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """Largest difference relative to the largest value, and least cosine of rows."""
    a, b = (each.astype(np.float64).reshape(-1, each.shape[-1]) for each in (one, other))
    scale = max(float(np.abs(a).max()), 1e-12)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines = np.divide((a * b).sum(axis=1), norms, out=np.ones_like(norms), where=norms != 0)
    return float(np.abs(a - b).max()) / scale, float(cosines.min())


def milliseconds(call: Any, times: int) -> float:
    """Median of a call, after one that warms up."""
    call()
    taken = []
    for _ in range(times):
        started_s = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started_s)
    return 1000 * median(taken)
