"""The Q-Former: learned queries that read an image, of BLIP-2 and InstructBLIP.

Paper: Li et al. 2023, "BLIP-2", §3.1 (arXiv 2301.12597): BERT's blocks, every second of which
attends to the image too.

Legend: B images, N positions of the image tower, Q queries, E width of the image tower, F width of
the queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import VIT_ATTENTION, Names, projections
from export.layers.attention.attention import CrossAttention, SelfAttention
from export.layers.blocks import BASE, MLP, BlockConfig, EncoderBlock


@dataclass(frozen=True, kw_only=True)
class ReaderConfig(BlockConfig):
    """Blocks that attend to an image.

    Attributes:
        image_width: E.
    """

    image_width: int


@dataclass(frozen=True, kw_only=True)
class QFormerConfig(ReaderConfig):
    """The Q-Former.

    Attributes:
        queries: Q.
        cross_every: The first block, and every so many behind it, attend to the image.
    """

    supported = {"position_embedding_type": "absolute"}
    queries: int
    cross_every: int = key("cross_attention_frequency", 2)


def read_qformer(reader: ConfigReader, image_width: int) -> QFormerConfig:
    """The Q-Former's section; `transformers` overwrites `encoder_hidden_size`."""
    queries = reader.integer("num_query_tokens", 32)
    section = reader.section("qformer_config", BASE)
    return section.read(QFormerConfig, queries=queries, image_width=image_width)


class QueryBlock(EncoderBlock):
    """Self-attention, in some blocks attention to the image, and MLP; norms behind."""

    def __init__(self, config: ReaderConfig, *, reads_image: bool) -> None:
        norm = partial(nn.LayerNorm, config.width, eps=config.norm_epsilon)
        mlp = MLP(config.width, config.mlp_width, config.activation)
        super().__init__(SelfAttention(config.heads), mlp, norm, is_norm_first=False)
        self.reads_image = reads_image
        if reads_image:
            self.cross = CrossAttention(config.heads, config.image_width)
            self.cross_norm = norm()

    def read(self, x: Tensor, patches: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, Q, F), (B, N, E) → (B, Q, F).

        Args:
            lengths: (B,) int32, where what reads the image is padded on the right.
        """
        return self.finish_queries(self.attention_norm(x + self.attention(x, lengths)), patches)

    def finish_queries(self, x: Tensor, patches: Tensor) -> Tensor:
        """What follows self-attention, the same shapes."""
        if self.reads_image:
            x = self.cross_norm(x + self.cross(x, self.cross.project_kv(patches)))
        return self.mlp_norm(x + self.mlp(x))


class QFormer(nn.Module):
    """Queries, and what they find in an image."""

    def __init__(self, config: QFormerConfig) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(1, config.queries, config.width))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.blocks = nn.ModuleList(
            QueryBlock(config, reads_image=layer % config.cross_every == 0)
            for layer in range(config.layers)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, E) → (B, Q, F)."""
        x = self.norm(self.queries.expand(patches.shape[0], -1, -1))
        for block in self.blocks:
            assert isinstance(block, QueryBlock)
            x = block.read(x, patches)
        return x


def qformer_names(ours: str) -> Names:
    """The table below a prefix of ours."""
    theirs, block = "qformer.encoder.layer.*", f"{ours}.blocks.*"
    table: Names = {
        "query_tokens": f"{ours}.queries",
        "qformer.layernorm": f"{ours}.norm",
        f"{theirs}.intermediate_query.dense": f"{block}.mlp.up",
        f"{theirs}.output_query.dense": f"{block}.mlp.down",
        f"{theirs}.output_query.LayerNorm": f"{block}.mlp_norm",
    }
    for name, own in (("attention", "attention"), ("crossattention", "cross")):
        table |= projections(f"{theirs}.{name}", f"{block}.{own}", VIT_ATTENTION)
        table[f"{theirs}.{name}.output.LayerNorm"] = f"{block}.{own}_norm"
    return table
