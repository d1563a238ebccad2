"""PEGASUS-X: Pegasus whose encoder attends within blocks and to a few tokens of its own.

Paper: Phang et al. 2022, "Investigating Efficiently Extending Transformers for Long Input
Summarization", §3 (arXiv 2208.04347).
Checkpoints: `google/pegasus-x-*` (`model_type: pegasus_x`).

Legend: B batch, S source positions, N blocks, L positions of a block, G global tokens, H heads,
K width of a head, D width.

A position attends to its block and to the global tokens; these attend to each other and to all
positions. In every second layer the blocks begin half a block later.
Differences from `transformers`: as in `bart.py`, whose decoder this is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import no_section
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Rename
from export.decoder_graphs.transformer import text_to_text_graphs
from export.layers.attention.attention import Attention, attend, within
from export.layers.attention.heads import Heads
from export.layers.attention.near import attend_near, in_blocks, join_blocks
from export.layers.blocks import MLP
from export.models.encoder_decoders import bart
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

FORM = bart.Form(
    positions=bart.Positions.SPREAD_FROM_ZERO,
    is_norm_first=True,
    has_embedding_norm=False,
    has_final_norm=True,
    has_output_bias=False,
    has_attention_bias=False,
    is_embedding_scaled=True,
    pad_token_id=0,
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """BART's configuration, and the encoder's attention."""

    bart: bart.Config
    global_tokens: int = key("num_global_tokens", 32)
    block: int = key("block_size", 512)
    is_staggered: bool = key("stagger_local_blocks", True)

    @property
    def limits(self) -> Limits:
        """The position table bounds both sides."""
        return self.bart.limits


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Raises:
        CheckpointError: a block has no half.
    """
    config = ConfigReader(values).read(Config, bart=bart.read_config(values, FORM))
    if config.is_staggered and config.block % 2:
        raise CheckpointError(
            f"config.json: block_size = {config.block} must be even with stagger_local_blocks"
        )
    return config


# ---------------------------------------------------------------------------------------- blocks


class GlobalLocalAttention(Attention):
    """Positions attend to their block and the global tokens, which attend to everything.

    Args:
        block: L.
        shift: Positions by which the first block is cut short.
    """

    def __init__(self, heads: Heads, block: int, shift: int) -> None:
        super().__init__(heads)
        self.block = block
        self.shift = shift

    def forward(self, x: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and global tokens (B, G, D) → the same shapes."""
        size = x.shape[1]
        count = (size + self.shift + self.block - 1) // self.block  # N
        padding = (self.shift, count * self.block - size - self.shift)
        visible = functional.pad(within(lengths, size), padding)  # (B, N·L)
        x = functional.pad(x, (0, 0, *padding))
        query, key, value = (self.split(part(x)) for part in (self.query, self.key, self.value))
        own = [self.split(part(tokens)) for part in (self.query, self.key, self.value)]
        keys, values = torch.cat([key, own[1]], dim=2), torch.cat([value, own[2]], dim=2)
        everything = behind(visible, tokens)[:, None, None]
        read = self.out(self.join(attend(self.heads, own[0], keys, values, everything)))
        query, key, value = (in_blocks(part, self.block) for part in (query, key, value))
        masks = visible.unflatten(1, (-1, self.block))[:, :, None, None]  # (B, N, 1, 1, L)
        others = own[1][:, None], own[2][:, None]
        mixed = attend_near(self.heads, query, (key, value), others, behind(masks, tokens))
        return self.out(join_blocks(mixed)[:, self.shift : self.shift + size]), read


def behind(visible: Tensor, tokens: Tensor) -> Tensor:
    """Which positions are no padding, (…, S) → (…, S + G), of which the last are `tokens`."""
    return functional.pad(visible, (0, tokens.shape[1]), value=True)


class Block(nn.Module):
    """Attention and MLP, of positions and global tokens alike; norms in front."""

    def __init__(self, config: Config, shift: int) -> None:
        super().__init__()
        own = config.bart
        norm = partial(nn.LayerNorm, own.width)
        self.attention = GlobalLocalAttention(own.encoder.heads, config.block, shift)
        self.attention_norm, self.token_norm, self.mlp_norm = norm(), norm(), norm()
        self.mlp = MLP(own.width, own.encoder.mlp_width, own.encoder.activation)

    def forward(self, x: Tensor, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S, D) and global tokens (B, G, D) → the same shapes."""
        attended, read = self.attention(self.attention_norm(x), self.token_norm(tokens), lengths)
        x, tokens = x + attended, tokens + read
        return x + self.mlp(self.mlp_norm(x)), tokens + self.mlp(self.mlp_norm(tokens))


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.embedding = bart.Embedding(config.bart, tokens)
        self.block = config.block
        self.tokens = nn.Embedding(config.global_tokens, config.bart.width)
        shift = config.block // 2 if config.is_staggered else 0
        self.blocks = nn.ModuleList(
            Block(config, shift * (layer % 2)) for layer in range(config.bart.encoder.layers)
        )
        self.norm = nn.LayerNorm(config.bart.width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        x = self.embedding(tokens, torch.arange(tokens.shape[1])[None])
        own = self.tokens.weight.expand(x.shape[0], -1, -1)
        for block in self.blocks:
            x, own = block(x, own, lengths)
        return self.norm(x)


def build(config: Config) -> bart.Bart:
    """Both stacks."""
    return bart.Bart(config.bart, partial(Encoder, config))


def rename(config: Config) -> Rename:
    """BART's names → ours, and those of the global tokens."""
    names = bart.rename(config.bart)
    for prefix in ("", "model."):
        names.table[f"{prefix}encoder.embed_global"] = "encoder.tokens"
        theirs = f"{prefix}encoder.layers.*.global_self_attn_layer_norm"
        names.table[theirs] = "encoder.blocks.*.token_norm"
    return names


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    bart.declare("pegasus_x", {"generate": no_section}),
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(
        model, model.encoder.embedding.tokens, traced=3 * model.encoder.block - 1
    ),
)
