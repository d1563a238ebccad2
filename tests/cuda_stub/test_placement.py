"""ONNX Runtime places the nodes of CUDA bundles where `export/targets/cuda/kernels.json` says."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.parity.graph_runs import bundle_path
from export.precision import Precision
from export.targets.cuda.assignment import SHAPE_ARITHMETIC, assign
from tests.cuda_stub.conftest import OnDevice
from tests.cuda_stub.placement import CPU, CUDA, place
from tests.cuda_stub.stub_library import Stub

FP32, FP16, BF16 = Precision.FP32, Precision.FP16, Precision.BF16
PRECISIONS = {
    "gpt2": (FP32, FP16, BF16),
    "marian": (FP32, FP16, BF16),
    "t5": (FP32, FP16, BF16),
    "llama": (FP32, FP16, BF16),
    "vision-encoder-decoder": (FP32, FP16),
    "clip": (FP32, FP16),
    "vit": (FP32, FP16),
    "bert": (FP32, FP16, BF16),
    "rnn-lm": (FP32, FP16),
    "bahdanau": (FP32, FP16, BF16),
}
"""One architecture of each kind → what its bundles for CUDA may be."""
ENCODERS = ("clip", "vit", "bert")
CASES = [(name, precision) for name, each in PRECISIONS.items() for precision in each]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_every_node_is_placed_as_the_table_says(
    stub: Stub, on_device: OnDevice, name: str, precision: Precision, tmp_path: Path
) -> None:
    bundle = on_device(name, precision)
    for key in bundle.manifest.graphs:
        path = bundle_path(bundle, key)
        expected, found = assign(path, key), place(path, tmp_path, is_optimised=False)
        on_host = found.operators(CPU)
        assert on_host <= expected.host + expected.movable, f"{key}: nodes that CUDA should compute"
        assert sum(found.operators(CUDA).values()) > sum(on_host.values())
        served = place(path, tmp_path, is_optimised=True)
        assert set(served.operators(CPU)) <= SHAPE_ARITHMETIC
        assert not served.copies, f"{key}: copies between host and device"


@pytest.mark.parametrize(("name", "precision"), [c for c in CASES if c[0] not in ENCODERS])
def test_step_may_be_captured(
    stub: Stub, on_device: OnDevice, name: str, precision: Precision, tmp_path: Path
) -> None:
    bundle = on_device(name, precision)
    place(bundle_path(bundle, "step"), tmp_path, is_optimised=True, enable_cuda_graph="1")
