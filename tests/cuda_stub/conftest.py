"""The stub tier, `make test-cuda-stub`: ONNX Runtime's CUDA provider over a stub of CUDA.

Skipped where the environment is not set up: `tests/cuda_stub/environment.sh`.
"""

from __future__ import annotations

from collections.abc import Callable

import onnxruntime
import pytest

from export.precision import Precision
from inference.bundle.manifest import Bundle
from tests.cuda_stub.stub_library import Stub
from tests.export.conftest import bundles, twins
from tests.export.targets.cuda.conftest import CudaBundles, cuda_bundles

OnDevice = Callable[[str, Precision], Bundle]

__all__ = ["bundles", "cuda_bundles", "twins"]


@pytest.fixture(scope="session")
def stub() -> Stub:
    """The stub; skips the test where it is not there."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider: run `make test-cuda-stub`")
    try:
        return Stub()
    except (OSError, AttributeError):
        pytest.skip("libcudart.so.13 is not the stub of tests/cuda_stub: run `make test-cuda-stub`")


@pytest.fixture(scope="session")
def on_device(cuda_bundles: CudaBundles) -> OnDevice:
    """(architecture, precision) → its twin's bundle for CUDA."""
    return lambda name, precision: cuda_bundles(name, precision)[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A tool that may be missing: not for `make test`."""
    for item in items:
        if "stub" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.full)
