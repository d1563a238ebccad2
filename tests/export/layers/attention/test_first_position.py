"""The last block computed for the first position alone: the first row of the whole."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import EncoderBlock
from export.layers.mlp import MLP
from export.models.encoders import bert, mpnet
from export.text_encoders.pooling import Pooling, PoolingMode
from inference.bundle.manifest import Role
from tests.export.conftest import Twins

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
    assert isinstance(encoder, mpnet.Encoder)
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
