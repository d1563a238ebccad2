"""Whether this machine has the device that a bundle is for."""

from __future__ import annotations

from pathlib import Path

from serving.bundle import Bundle
from serving.errors import DeviceError

GPU = Path("/dev/nvidiactl")
"""There on every Linux machine, and in every container, that can use an NVIDIA GPU."""


def require_device(bundle: Bundle) -> None:
    """Refuse a bundle whose graphs are for a device that is not there.

    Raises:
        DeviceError: names the device, and what to do.
    """
    manifest = bundle.manifest
    if manifest.device == "cuda" and not GPU.exists():
        raise DeviceError(
            f"{manifest.name} version {bundle.version} is for CUDA ({manifest.precision}), and "
            f"this machine has no GPU ({GPU} is missing): serve it where there is one, or export "
            "it with --device cpu"
        )
