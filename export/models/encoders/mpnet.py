"""MPNet: RoBERTa's heads and absolute positions, and relative positions in the scores.

Paper: Song et al. 2020, "MPNet: Masked and Permuted Pre-training for Language Understanding", §2
(arXiv 2004.09297).
Checkpoints: `model_type: mpnet`.

Legend: B batch, T positions, D width, H heads.

Differences from `transformers`: as of BERT (`bert.py`); the bias of the relative positions is
computed once and is an input of every layer's fused attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, projections, with_and_without
from export.layers.attention.positions import RelativePositions
from export.layers.blocks import BASE
from export.models.encoders import bert, roberta
from export.models.encoders.roberta import HEADS, Config
from export.text_encoders.declaration import text_architecture
from export.text_encoders.heads import read_head
from export.text_encoders.network import TextEncoder, TextModel

# ---------------------------------------------------------------------------------------- config

PAD_TOKEN = 1
"""Positions are counted from behind it, whatever `pad_token_id` is."""
BUCKETS, FARTHEST = 32, 128


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=BASE | {"vocab_size": 30527})
    reader.refuse_unless(relative_attention_num_buckets=BUCKETS)
    head = read_head(reader, "MPNet", HEADS)
    return reader.read(Config, segment_types=0, head=head, pad_token=PAD_TOKEN)


# --------------------------------------------------------------------------------------- network


class Encoder(roberta.Encoder):
    """Embeddings, and blocks that share a bias of the scores."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.relative = RelativePositions(
            config.heads.count, BUCKETS, FARTHEST, is_bidirectional=True
        )

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,) → (B, T, D)."""
        positions = torch.arange(token_ids.shape[1])
        bias = self.relative(positions[None], positions)
        x = self.norm(self.tokens(token_ids) + self.position_vectors(token_ids))
        for block in self.blocks:
            x = block(x, lengths, bias)
        return x

    def first(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T) → (B, 1, D): a slice of `forward`, whose blocks share a bias."""
        return TextEncoder.first(self, token_ids, lengths, segments)


def build(config: Config) -> TextModel:
    """The encoder with RoBERTa's heads."""
    return roberta.add_heads(Encoder(config), config)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "encoder.layer.*", "encoder.blocks.*"
    encoder: Names = {
        **bert.EMBEDDINGS,
        "encoder.relative_attention_bias": "encoder.relative.bias",
        **projections(f"{theirs}.attention.attn", f"{ours}.attention", "q k v o"),
        f"{theirs}.attention.LayerNorm": f"{ours}.attention_norm",
        f"{theirs}.intermediate.dense": f"{ours}.mlp.up",
        f"{theirs}.output.dense": f"{ours}.mlp.down",
        f"{theirs}.output.LayerNorm": f"{ours}.mlp_norm",
        "pooler.dense": None,
    }
    return Rename(with_and_without("mpnet.", encoder) | roberta.head_names(config.head))


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("mpnet", read_config, build, rename)
