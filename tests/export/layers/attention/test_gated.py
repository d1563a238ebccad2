"""RMS norm and gated MLP against the layers of `transformers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.layers.mlp import GatedMLP
from export.layers.norm import RMSNorm
from inference.bundle.manifest import Graph, Tensor
from tests.export.oracle import difference
from tests.export.twins import randomise

WIDTH = 12
NORMS = {"llama": (LlamaRMSNorm, 0.0), "gemma": (Gemma2RMSNorm, 1.0)}


def _norms(name: str) -> tuple[nn.Module, RMSNorm]:
    layer, offset = NORMS[name]
    theirs: Any = layer(WIDTH, eps=1e-2)
    randomise(theirs)
    ours = RMSNorm(WIDTH, 1e-2, offset)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("name", NORMS)
def test_norm_is_that_of_transformers(name: str) -> None:
    theirs, ours = _norms(name)
    x = torch.randn(3, 5, WIDTH)
    assert difference(theirs(x), ours(x)) < 1e-6


@pytest.mark.parametrize("name", NORMS)
def test_unloaded_norm_only_normalises(name: str) -> None:
    x = torch.randn(3, 5, WIDTH)
    norm = RMSNorm(WIDTH, 0.0, NORMS[name][1])
    assert torch.allclose(norm(x).pow(2).mean(dim=-1), torch.ones(3, 5))


@pytest.mark.slow
def test_onnx_runtime_runs_a_norm_as_one_operator(tmp_path: Path) -> None:
    port = {"dtype": "float32", "shape": ("R", "T", WIDTH)}
    graph = Graph(
        file="norm.onnx", inputs=(Tensor(name="x", **port),), outputs=(Tensor(name="y", **port),)
    )
    _, ours = _norms("gemma")
    to_onnx(Lowering(ours, graph), tmp_path / "norm.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "norm.onnx"), options)
    x = torch.randn(3, 5, WIDTH)
    (got,) = session.run(None, {"x": x.numpy()})
    with torch.no_grad():
        assert difference(ours(x), torch.from_numpy(got)) < 1e-6
    nodes = onnx.load(str(tmp_path / "optimised.onnx")).graph.node
    assert [node.op_type for node in nodes] == ["SimplifiedLayerNormalization"]


@pytest.mark.parametrize("bias", [False, True])
def test_gated_mlp_is_that_of_transformers(bias: bool) -> None:
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=20, num_attention_heads=2, mlp_bias=bias
    )
    theirs = LlamaMLP(config)
    randomise(theirs)
    ours = GatedMLP(WIDTH, 20, "silu", bias=bias)
    names = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
    ours.load_state_dict(
        {f"{names[n.partition('.')[0]]}.{n.partition('.')[2]}": t
         for n, t in theirs.state_dict().items()}
    )  # fmt: skip
    x = torch.randn(3, WIDTH)
    assert difference(theirs(x), ours(x)) < 1e-6
