"""Bundles for CUDA, made once a session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from export.parity.verify import Report
from export.precision import Precision
from inference.bundle.manifest import Bundle
from tests.export.conftest import Bundles, Twins
from tests.export.targets.cuda.bundles import on_cuda

CudaBundles = Callable[[str, Precision], tuple[Bundle, Report]]


@pytest.fixture(scope="session")
def cuda_bundles(
    twins: Twins, bundles: Bundles, tmp_path_factory: pytest.TempPathFactory
) -> CudaBundles:
    """(architecture, precision) → its twin's bundle for CUDA, through the gate, and the report."""

    @cache
    def build(name: str, precision: Precision) -> tuple[Bundle, Report]:
        folder = tmp_path_factory.mktemp(f"{name}-{precision}")
        return on_cuda(name, precision, twins, bundles, folder)

    return build
