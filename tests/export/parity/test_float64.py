"""The float64 network is the same network, computed more exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from export.parity.float64 import in_float64
from export.parity.verify import observe, torch_run
from export.pipeline.manifest import Request, build_manifest
from export.registry import families
from export.twin import EXPORTED
from inference.bundle.manifest import Bundle
from tests.export.conftest import SIBLINGS, TwinPair, Twins


def unexported(twin: TwinPair) -> Bundle:
    """A twin's manifest; no graph is written."""
    graphs = twin.graphs()
    manifest, _ = build_manifest(Request("twin"), 1, twin.source, graphs)
    return Bundle(Path("none"), manifest)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.full if n in SIBLINGS else ()) for n in families()],
)
def test_float64_is_near_float32(name: str, twins: Twins) -> None:
    graphs, bundle = twins(name, EXPORTED).graphs(), unexported(twins(name, EXPORTED))
    worst = 0.0
    for exact, rounded in zip(
        observe(graphs, bundle, torch_run(in_float64(graphs))),
        observe(graphs, bundle, torch_run(graphs)),
        strict=True,
    ):
        assert exact.place == rounded.place
        if rounded.value.dtype == np.float32:
            assert exact.value.dtype == np.float64, exact.place
            difference = np.abs(exact.value - rounded.value).max() / np.abs(exact.value).max()
            assert difference < 1e-5, exact.place
            worst = max(worst, difference)
    assert worst > 1e-9, "nothing was computed more exactly"
