"""Blocks for the first position alone, RMS norm and gated MLP."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from export.architecture import Lowering
from export.graphs.to_onnx import to_onnx
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP, EncoderBlock, GatedMLP, RMSNorm
from export.models.encoders import bert
from export.text_encoders.pooling import Pooling, PoolingMode
from inference.bundle.manifest import Graph, Role
from inference.bundle.manifest import Tensor as ManifestTensor
from tests.export.conftest import Twins
from tests.export.oracle import difference
from tests.export.twins import randomise

WIDTH = 12


@pytest.mark.parametrize("is_norm_first", [True, False])
def test_first_position_of_a_block_is_the_first_row_of_the_whole(is_norm_first: bool) -> None:
    torch.manual_seed(0)
    block = EncoderBlock(
        SelfAttention(Heads(WIDTH, 3)),
        MLP(WIDTH, 20, "gelu"),
        partial(nn.LayerNorm, WIDTH),
        is_norm_first=is_norm_first,
    )
    x, lengths = torch.randn(3, 5, WIDTH), torch.tensor([5, 1, 3], dtype=torch.int32)
    for given in (None, lengths):
        torch.testing.assert_close(block.first(x, given), block(x, given)[:, :1])


@pytest.mark.parametrize(
    ("name", "config", "key"),
    [
        ("vit", "plain", "image"),
        ("vit", "pooled", "image"),
        ("dinov2", "enlarged", "image"),
        ("clip", "plain", "image"),
        ("bert", "classes", "text"),
    ],
)
def test_last_block_of_a_whole_sequence_is_left_out_where_one_position_is_read(
    name: str, config: str, key: str, twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = twins(name, config)
    lowering = twin.graphs().lowerings[key]
    whole: list[EncoderBlock] = []
    forward = EncoderBlock.forward

    def counted(self: EncoderBlock, *arguments: Tensor) -> Tensor:
        whole.append(self)
        return forward(self, *arguments)

    monkeypatch.setattr(EncoderBlock, "forward", counted)
    feeds = {
        Role.TOKENS: torch.full((2, 6), 7),
        Role.LENGTHS: torch.tensor([6, 4], dtype=torch.int32),
        Role.SEGMENTS: torch.zeros(2, 6, dtype=torch.long),
    }
    if twin.prepared.image is not None:
        feeds[Role.PIXELS] = torch.zeros(2, *twin.prepared.image.shape, dtype=torch.uint8)
    lowering.module(*(feeds[port.role] for port in lowering.graph.inputs))
    blocks = [m for m in lowering.module.modules() if isinstance(m, EncoderBlock)]
    assert len(whole) == len(blocks) - 1


def test_a_bias_that_blocks_share_keeps_the_whole_sequence(twins: Twins) -> None:
    encoder = twins("mpnet", "plain").network.encoder
    assert isinstance(encoder, bert.MPNetEncoder)
    tokens, lengths = torch.full((2, 6), 7), torch.tensor([6, 4], dtype=torch.int32)
    torch.testing.assert_close(encoder.first(tokens, lengths), encoder(tokens, lengths)[:, :1])


def test_vectors_pooled_from_the_first_token_equal_those_of_the_whole(twins: Twins) -> None:
    encoder = twins("bert", "plain").network.encoder
    assert isinstance(encoder, bert.Encoder)
    tokens, lengths = torch.full((2, 6), 7), torch.tensor([6, 4], dtype=torch.int32)
    pooling = Pooling((PoolingMode.CLS,))
    assert pooling.reads_first
    assert not Pooling((PoolingMode.CLS, PoolingMode.MEAN)).reads_first
    torch.testing.assert_close(
        pooling(encoder.first(tokens, lengths), lengths), pooling(encoder(tokens, lengths), lengths)
    )


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
        file="norm.onnx",
        inputs=(ManifestTensor(name="x", **port),),
        outputs=(ManifestTensor(name="y", **port),),
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
