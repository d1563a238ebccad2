"""Where ONNX Runtime's CUDA provider places nodes and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from export.parity.graph_runs import bundle_path
from export.precision import Precision
from export.targets.cuda.assignment import SHAPE_ARITHMETIC, assign
from inference.engine.runners.cuda.device import CudaDevice
from inference.engine.runners.ort.device import CpuDevice
from inference.engine.state.device import EntryCopies
from tests.cuda_stub.conftest import OnDevice
from tests.cuda_stub.stub_library import Stub

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
_COPIES = ("MemcpyFromHost", "MemcpyToHost")


@dataclass(frozen=True)
class Placement:
    """One graph's.

    Attributes:
        nodes: Provider → name → operator, of the nodes that it was assigned.
        copies: Nodes that copy between host and device, which ONNX Runtime added.
    """

    nodes: dict[str, dict[str, str]]
    copies: int

    def operators(self, provider: str) -> Counter[str]:
        """Operators of a provider."""
        return Counter(self.nodes.get(provider, {}).values())


def place(path: Path, folder: Path, *, is_optimised: bool, **options: str) -> Placement:
    """The placement of a graph.

    Args:
        folder: For the graph as ONNX Runtime runs it.
        is_optimised: Whether operators are fused first, as in serving.
        options: Of the CUDA provider.
    """
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    settings.optimized_model_filepath = str(folder / "placed.onnx")
    if not is_optimised:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers: list[Any] = [(CUDA, options), CPU]
    session = onnxruntime.InferenceSession(str(path), settings, providers=providers)
    assert session.get_providers()[0] == CUDA
    nodes: dict[str, dict[str, str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found = {node.name: node.op_type for node in part.get_nodes()}
        nodes.setdefault(part.ep_name, {}).update(found)
    model = onnx.load(str(folder / "placed.onnx"), load_external_data=False)
    return Placement(nodes, sum(node.op_type in _COPIES for node in _all_nodes(model.graph)))


def _all_nodes(graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


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


@pytest.mark.parametrize("has_batches", [True, False])
def test_rows_of_several_states_are_copied(stub: Stub, has_batches: bool) -> None:
    device, host = CudaDevice(), CpuDevice()
    assert device.runtime._has_batches, "the stub is CUDA 13's"
    device.runtime._has_batches = has_batches
    values = [np.random.rand(6, 3, 8, 4).astype(np.float16), np.random.rand(6, 5).astype("f4")]
    tensors = []
    for each in values:
        tensor = device.view(device.allocate(each.size, str(each.dtype)), each.shape)
        device.upload(each, tensor)
        tensors.append(tensor)
    pairs, places = [(0, 1), (0, 2), (5, 4)], ((2, 5), (None, 0))
    before = stub.read()
    for memory, states in ((device, tensors), (host, values)):
        memory.copy_entries(
            *(
                EntryCopies(each, each, pairs, *place)
                for each, place in zip(states, places, strict=True)
            )
        )
    found = stub.read() - before
    assert (found.batches, found.device_to_device) == ((1, 0) if has_batches else (0, 6))
    for tensor, wanted in zip(tensors, values, strict=True):
        np.testing.assert_array_equal(device.fetch(tensor), wanted)
