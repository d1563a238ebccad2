"""What a machine lacks of CUDA is said in one line."""

from __future__ import annotations

import pytest

from inference.engine.runners.cuda import installation, runtime
from inference.engine.runners.cuda.runtime import CudaRuntime
from inference.errors import DeviceError


def test_runtime_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_LIBRARIES", ("libabsent.so.1", "libabsent.so.2"))
    with pytest.raises(DeviceError, match=r"^libabsent.so.1 or libabsent.so.2 is missing: install"):
        CudaRuntime(0)


def test_provider_is_missing() -> None:
    with pytest.raises(DeviceError, match="has no CUDAExecutionProvider: install"):
        installation.check_card(0)


def test_cudnn_is_missing() -> None:
    said = (
        "Non-zero status code returned while running Conv node. Name:'c' Status Message: cuDNN is "
        "unavailable or disabled for CUDA Execution Provider: dlopen failed for libcudnn.so"
    )
    wanted = (
        r"^cuDNN is missing, which Conv needs on CUDA: pip install onnxruntime-gpu\[cuda,cudnn\]$"
    )
    with pytest.raises(DeviceError, match=wanted):
        installation.require_cudnn(RuntimeError(said))


def test_other_errors_of_a_kernel_are_not_about_cudnn() -> None:
    installation.require_cudnn(RuntimeError("while running Conv node: CUDNN_STATUS_NOT_SUPPORTED"))
