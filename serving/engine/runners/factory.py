"""The runner for a bundle and a device: the only place that chooses an implementation."""

from __future__ import annotations

from serving.bundle import Bundle
from serving.engine.runners.ort.device import CpuDevice
from serving.engine.runners.ort.runner import OrtRunner
from serving.engine.runners.protocol import Runner
from serving.errors import SetupError

SPARE_BYTES = 512 << 20
"""Released buffers kept for reuse, unless the caller decides otherwise."""


def make_runner(
    bundle: Bundle, device: str = "cpu", *, threads: int = 0, spare_bytes: int = SPARE_BYTES
) -> Runner:
    """A runner of a generator's bundle.

    Args:
        device: `cpu`. Other devices need an `OrtDevice` of their own.
        threads: Intra-op threads; 0 leaves the choice to ONNX Runtime.
        spare_bytes: Bound on released buffers kept for reuse.

    Raises:
        SetupError: the device is not supported.
        BundleError: the bundle's graphs or dtypes are not supported on the device.
    """
    if device != "cpu":
        raise SetupError(f"device {device!r} is not supported for generators: supported is 'cpu'")
    return OrtRunner(bundle, threads, spare_bytes, CpuDevice())
