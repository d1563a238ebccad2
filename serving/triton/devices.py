"""Whether this machine has the device that a bundle is for."""

from __future__ import annotations

from pathlib import Path

from inference.bundle.manifest import Bundle
from inference.errors import DeviceError
from serving.settings.served_device import ANY_DEVICE, ServedDevice

GPU = Path("/dev/nvidiactl")
"""There on every Linux machine, and in every container, that can use an NVIDIA GPU."""


def require_device(bundle: Bundle, device: ServedDevice = ANY_DEVICE) -> None:
    """Refuse a bundle whose graphs are for a device that is not there, or not to be used.

    Raises:
        DeviceError: names the device, and what to do.
    """
    manifest = bundle.manifest
    if manifest.device != "cuda":
        return
    described = f"{manifest.name} version {bundle.version} is for CUDA ({manifest.precision})"
    if not device.serves_cuda:
        raise DeviceError(f"{described}, and --device is cpu: export it with --device cpu")
    if not GPU.exists():
        raise DeviceError(
            f"{described}, and this machine has no GPU ({GPU} is missing): serve it where there is "
            "one, or export it with --device cpu"
        )
