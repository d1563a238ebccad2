"""The exported files: interface, versions, operators."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from export.architecture import Lowering
from export.graphs.to_onnx import MAX_IR, OPSET, _shallow_copy, to_onnx
from export.parity.graph_runs import bundle_path
from export.registry import families
from inference.bundle.manifest import Graph, Tensor
from tests.export.conftest import Bundles, Twins
from tests.export.twin import EXPORTED


def _models(bundles: Bundles, name: str) -> dict[str, onnx.ModelProto]:
    bundle = bundles(name, EXPORTED)
    return {key: onnx.load(str(bundle_path(bundle, key))) for key in bundle.manifest.graphs}


@pytest.mark.parametrize("name", families())
def test_files_have_the_interface_of_the_manifest(name: str, bundles: Bundles) -> None:
    for key, model in _models(bundles, name).items():
        graph = bundles(name, EXPORTED).manifest.graphs[key]
        for values, ports in (
            (model.graph.input, graph.inputs),
            (model.graph.output, graph.outputs),
        ):
            shapes = [
                tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
                for value in values
            ]
            assert [value.name for value in values] == [port.name for port in ports]
            assert shapes == [port.shape for port in ports]


@pytest.mark.parametrize("name", families())
def test_files_are_old_enough_for_a_current_container(name: str, bundles: Bundles) -> None:
    for model in _models(bundles, name).values():
        assert model.ir_version <= MAX_IR
        versions = {opset.domain: opset.version for opset in model.opset_import}
        assert versions.pop("") <= OPSET
        assert set(versions) <= {"com.microsoft"}


def test_decoder_attends_with_the_fused_operators(bundles: Bundles) -> None:
    operators = [node.op_type for node in _models(bundles, "marian")["step"].graph.node]
    assert operators.count("GroupQueryAttention") == 2  # one a layer
    assert operators.count("MultiHeadAttention") == 2
    assert "Softmax" not in operators


def test_tied_table_is_stored_once(bundles: Bundles) -> None:
    model = _models(bundles, "marian")["step"]
    tables = [t for t in model.graph.initializer if sorted(t.dims) == [30, 64]]
    assert len(tables) == 1


class _Square(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]


def _square(path: Path, rows: int | str) -> None:
    port = Tensor(name="x", dtype="float32", shape=(rows, 4))
    graph = Graph(file="x.onnx", inputs=(port,), outputs=(port.model_copy(update={"name": "mul"}),))
    to_onnx(Lowering(_Square(), graph), path)


@pytest.mark.slow
def test_output_may_be_called_like_an_operator(tmp_path: Path) -> None:
    _square(tmp_path / "x.onnx", "B")
    model = onnx.load(str(tmp_path / "x.onnx"))
    assert [value.name for value in model.graph.output] == ["mul"]


@pytest.mark.slow
def test_large_weights_go_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.graphs.to_onnx.EXTERNAL_DATA_BYTES", 0)
    module = nn.Linear(64, 64)
    port = Tensor(name="x", dtype="float32", shape=("B", 64))
    graph = Graph(file="x.onnx", inputs=(port,), outputs=(port.model_copy(update={"name": "y"}),))
    to_onnx(Lowering(module, graph), tmp_path / "x.onnx")
    assert (tmp_path / "x.onnx.data").stat().st_size >= 64 * 64 * 4


def test_export_neither_copies_nor_changes_the_weights() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    copied = _shallow_copy(module)
    module[0].register_buffer("packed", torch.zeros(1))
    assert not hasattr(copied[0], "packed")
    pairs = zip(module.parameters(), copied.parameters(), strict=True)
    assert all(one is other for one, other in pairs)


@pytest.mark.slow
def test_large_weights_give_the_same_graph(
    twins: Twins, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.graphs.to_onnx.EXTERNAL_DATA_BYTES", 0)
    inside = onnx.load(str(bundle_path(bundles("gpt2", EXPORTED), "step")))
    to_onnx(twins("gpt2", EXPORTED).graphs().lowerings["step"], tmp_path / "step.onnx")
    assert (tmp_path / "step.onnx").stat().st_size < (tmp_path / "step.onnx.data").stat().st_size
    onnxruntime.InferenceSession(str(tmp_path / "step.onnx"))
    beside = onnx.load(str(tmp_path / "step.onnx"))
    assert [node.op_type for node in inside.graph.node] == [n.op_type for n in beside.graph.node]
    want = {tensor.name: numpy_helper.to_array(tensor) for tensor in inside.graph.initializer}
    got = {tensor.name: numpy_helper.to_array(tensor) for tensor in beside.graph.initializer}
    assert want.keys() == got.keys()
    assert all((want[name] == got[name]).all() for name in want)
    sizes = [(t.name, t.dims) for t in beside.graph.initializer if list(t.dims) == [64, 30]]
    assert len(sizes) == 1  # the tied table
