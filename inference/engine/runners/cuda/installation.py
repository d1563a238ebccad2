"""What this machine has of CUDA, and in one line what it lacks."""

from __future__ import annotations

import contextlib
import ctypes
import io
import re
from pathlib import Path

import onnxruntime

from inference.engine.runners.cuda.runtime import CudaRuntime
from inference.errors import DeviceError

PROVIDER = "CUDAExecutionProvider"
_NO_CUDNN = "cuDNN is unavailable"
_RUNNING_NODE = re.compile(r"running (\w+) node")


def check_card(number: int) -> None:
    """Refuses a card that nothing can run on.

    Raises:
        DeviceError: onnxruntime-gpu, libcudart or the card is missing.
    """
    require_provider()
    CudaRuntime(number).close()


def require_provider() -> None:
    """Refuses an ONNX Runtime that was built without CUDA.

    Raises:
        DeviceError: names what to install.
    """
    if PROVIDER not in onnxruntime.get_available_providers():
        raise DeviceError(
            f"onnxruntime {onnxruntime.__version__} has no {PROVIDER}: install "
            "triptych[serve-gpu] in an environment without the CPU's onnxruntime"
        )
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
        onnxruntime.preload_dlls()  # of the packages nvidia-*, which are on no search path


def require_loaded(session: onnxruntime.InferenceSession) -> None:
    """Refuses a session that fell back to the CPU, as ONNX Runtime does without an error.

    Raises:
        DeviceError: names the library that does not load.
    """
    if PROVIDER not in session.get_providers():
        raise DeviceError(f"ONNX Runtime cannot load {PROVIDER}: {_missing_library()}")


def require_cudnn(error: Exception) -> None:
    """Refuses an error of a kernel that found no cuDNN, which is loaded at its first use.

    Args:
        error: Of ONNX Runtime.

    Raises:
        DeviceError: names the operator.
    """
    if _NO_CUDNN not in str(error):
        return
    node = _RUNNING_NODE.search(str(error))
    raise DeviceError(
        f"cuDNN is missing, which {node[1] if node else 'this model'} needs on CUDA: "
        "pip install onnxruntime-gpu[cuda,cudnn]"
    ) from error


def _missing_library() -> str:
    """What the dynamic linker misses of the provider's libraries."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    try:
        ctypes.CDLL(str(folder / "libonnxruntime_providers_cuda.so"))
    except OSError as error:
        return str(error)
    return "its libraries load; the driver may be older than they are"
