"""The float64 network is the same network, computed more exactly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from export.parity import float64
from export.parity.float64 import Float64, in_float64
from export.parity.graph_runs import torch_run
from export.parity.verify import observe
from export.pipeline.manifest import Request, build_manifest
from export.registry import families
from inference.bundle.manifest import Bundle
from tests.export.conftest import SIBLINGS, TwinPair, Twins
from tests.export.twin import EXPORTED


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


@pytest.mark.parametrize("has_bias", [True, False])
def test_large_matrix_is_widened_in_parts_of_any_size(
    has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = torch.randn(2, 3, 40), torch.randn(50, 40)
    bias = torch.randn(50) if has_bias else None
    wanted = functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    weights = [weight] if bias is None else [weight, bias]
    for elements in (1, 7 * 40, 49 * 40, 50 * 40):
        monkeypatch.setattr(float64, "_BLOCK_ELEMENTS", elements)
        with Float64(weights):
            found = functional.linear(x, weight, bias)
        assert found.dtype is torch.float64
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


_TABLE = """
import resource, torch
from export.parity.float64 import Float64
x, table = torch.ones(1, 1024), torch.ones(60_000, 1024)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad(), Float64([table]):
    found = torch.nn.functional.linear(x, table)
assert found.unique().tolist() == [1024.0]
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_large_table_is_not_held_in_float64() -> None:
    """Of a process of its own, since a peak of memory is that of its whole life."""
    done = subprocess.run([sys.executable, "-c", _TABLE], capture_output=True, text=True)
    assert int(done.stdout) < 100 << 10, done.stderr  # KiB, of 469 MiB
