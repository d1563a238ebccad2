"""TensorRT-RTX, whose parser and builder need no GPU: `make test-tensorrt` puts it on the path.

It is TensorRT's own parser and network rules, with another code generator: what parses and builds
here is expected to in TensorRT, of the same ONNX operators and strong types. Plans of it run on no
GPU of a data centre and are thrown away.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from serving.tensorrt.builder import Target

CAPABILITY = "8.0"


@pytest.fixture(scope="session")
def library() -> Any:
    """The package; tests are skipped without it."""
    pytest.importorskip("tensorrt_rtx_libs", reason="make test-tensorrt installs it")
    return importlib.import_module("tensorrt_rtx_bindings")


@pytest.fixture(scope="session")
def target(library: Any) -> Target:
    """Builds for compute capability 8.0, which this machine need not have."""

    def configure(config: Any) -> None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(library.ComputeCapability.SM80, 0)

    return Target(library, configure)
