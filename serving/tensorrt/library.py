"""TensorRT's Python package, and the GPU that a plan is for; both are looked up when called."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from inference.errors import SetupError

_PACKAGES = ("tensorrt", "tensorrt_bindings")
"""The second is what the wheel `tensorrt-cu13-bindings` installs, for libraries of the system."""
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…


def tensorrt() -> Any:
    """The package.

    Raises:
        SetupError: it is not installed, or its libraries do not load.
    """
    reasons = []
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            reasons.append(str(error))
    raise SetupError(
        f"TensorRT's Python package is missing ({reasons[-1]}): build plans in the serving image "
        "(docker/README.md), or install tensorrt-cu13-bindings of its TensorRT's version"
    )


def compute_capability(index: int = 0) -> str:
    """`9.0` for an H100, from the driver.

    Raises:
        SetupError: there is no driver or no such GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise SetupError(f"no GPU: NVIDIA's driver is missing ({error})") from error
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    status = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), index)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    )
    if status:
        raise SetupError(f"GPU {index} cannot be used: the driver returns error {status}")
    return f"{major.value}.{minor.value}"
