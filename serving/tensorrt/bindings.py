"""`python -m serving.tensorrt.bindings auto`: what to install so that Python finds this TensorRT.

NVIDIA's images have TensorRT's libraries, and its Python package only of the same version builds
plans that they load.
"""

from __future__ import annotations

import ctypes
import sys

from inference.errors import SetupError

LIBRARIES = ("libnvinfer.so.11", "libnvinfer.so.10")
RUNTIMES = {"libcudart.so.13": 13, "libcudart.so.12": 12}


def requirement(wanted: str) -> str:
    """The requirement for pip, empty where nothing is to be installed.

    Args:
        wanted: `none`; `auto`: of the version of the libraries; or a version.

    Raises:
        SetupError: `auto`, and there are no libraries of TensorRT or CUDA.
    """
    if wanted == "none":
        return ""
    version = f"{_version()}.*" if wanted == "auto" else wanted
    return f"tensorrt-cu{_cuda()}-bindings=={version}"


def dotted(number: int) -> str:
    """`10.14.1` for 101401, as TensorRT 10 and later write their version."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _version() -> str:
    for name in LIBRARIES:
        try:
            return dotted(ctypes.CDLL(name).getInferLibVersion())
        except OSError:
            continue
    raise SetupError(f"this image has no TensorRT ({', '.join(LIBRARIES)}): use NVIDIA's Triton")


def _cuda() -> int:
    for name, major in RUNTIMES.items():
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return major
    raise SetupError(f"this image has no CUDA ({', '.join(RUNTIMES)}): use NVIDIA's Triton")


if __name__ == "__main__":
    try:
        print(requirement(sys.argv[1]))
    except SetupError as error:
        sys.exit(f"error: {error.message}")
