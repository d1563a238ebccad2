"""LongT5: T5 whose encoder attends to near positions and, in a form of it, to sums of blocks.

Paper: Guo et al. 2022, "LongT5: Efficient Text-To-Text Transformer for Long Sequences", §3.1 (arXiv
2112.07916).
Checkpoints: `google/long-t5-*` (`model_type: longt5`).

Legend: B batch, S source positions, N blocks, L positions of a block, G sums, H heads, K width of a
head, D width.

Positions attend to those nearer than L. Transient global attention adds a key for each g positions:
their sum, normalised. Positions behind the last whole g belong to the sum before; a source of fewer
than g has none.
Differences from `transformers`: as in `t5.py`, whose decoder this is.
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
from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.decoder_graphs.transformer import text_to_text_graphs
from export.layers.attention.attention import Attention, within
from export.layers.attention.heads import Heads
from export.layers.attention.near import attend_near, beside, in_blocks, join_blocks, missing
from export.layers.blocks import RMSNorm
from export.models.encoder_decoders import t5
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

SOURCE_POSITIONS = 16_384
"""Limit of a source, that of the published checkpoints' training; no table bounds it."""

# ---------------------------------------------------------------------------------------- config

_NAMES = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}


@dataclass(frozen=True)
class Config:
    """T5's configuration, and the encoder's attention."""

    t5: t5.Config
    kind: str
    """`local` or `transient-global`."""
    block: int
    """L."""
    summed: int
    """g: positions of a sum."""

    @property
    def limits(self) -> Limits:
        """Of a source, and of T5's output."""
        return Limits(max_input_tokens=SOURCE_POSITIONS, max_total_tokens=t5.POSITIONS)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Raises:
        CheckpointError: sums of a number of positions whose inverse is no exact float, or norms of
            sums of nothing without an epsilon.
    """
    reader = ConfigReader(values)
    summed = reader.integer("global_block_size", 16)
    if summed & (summed - 1):
        raise CheckpointError(
            f"config.json: global_block_size = {summed} is not supported, only powers of two are"
        )
    if reader.number("layer_norm_epsilon", 1e-6) <= 0:
        raise CheckpointError("config.json: layer_norm_epsilon must be positive")
    return Config(
        t5.read_config({**values, "model_type": "t5"}),
        reader.choice("encoder_attention_type", _NAMES, "local"),
        reader.integer("local_radius", 127) + 1,
        summed,
    )


# ---------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True)
class Scores:
    """What the scores of all layers have in common."""

    visible: Tensor
    """(B, N, 1, L, 3·L + G)."""
    bias: Tensor
    """(B or 1, N or 1, H, L, 3·L + G)."""
    members: Tensor | None = None
    """(B, G, S): 1 for the positions of each sum; None without sums."""


class LocalAttention(Attention):
    """Self-attention of positions to near ones and to sums.

    Args:
        norm: Of the sums; None: there are none.
    """

    def __init__(self, heads: Heads, block: int, norm: nn.Module | None) -> None:
        super().__init__(heads)
        self.block = block
        self.sum_norm = norm

    def forward(self, x: Tensor, scores: Scores) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        size = x.shape[1]
        sums = None
        if self.sum_norm is not None and scores.members is not None:
            read = self.sum_norm(scores.members @ x)
            sums = self.split(self.key(read))[:, None], self.split(self.value(read))[:, None]
        x = functional.pad(x, (0, 0, 0, missing(size, self.block)))
        parts = (self.split(part(x)) for part in (self.query, self.key, self.value))
        query, key, value = (in_blocks(part, self.block) for part in parts)
        near = beside(key), beside(value)
        mixed = attend_near(self.heads, query, near, sums, scores.visible, scores.bias)
        return self.out(join_blocks(mixed)[:, :size])


class Block(nn.Module):
    """Norm, self-attention, norm and MLP, each pair with a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        norm = partial(RMSNorm, config.t5.width, config.t5.epsilon)
        sum_norm = norm() if config.kind == "transient-global" else None
        self.attention = LocalAttention(config.t5.heads, config.block, sum_norm)
        self.attention_norm = norm()
        self.mlp = t5.make_mlp(config.t5)
        self.mlp_norm = norm()

    def forward(self, x: Tensor, scores: Scores) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        x = x + self.attention(self.attention_norm(x), scores)
        return x + self.mlp(self.mlp_norm(x))


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.block, self.summed = config.block, config.summed
        self.relative = t5.relative_positions(config.t5, is_bidirectional=True)
        self.relative_sums = None
        if config.kind == "transient-global":
            self.relative_sums = t5.relative_positions(config.t5, is_bidirectional=True)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.t5.encoder_layers))
        self.norm = RMSNorm(config.t5.width, config.t5.epsilon)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        x, scores = self.tokens(tokens), self.scores(lengths, tokens.shape[1])
        for block in self.blocks:
            x = block(x, scores)
        return self.norm(x)

    def scores(self, lengths: Tensor, size: int) -> Scores:
        """Masks and biases of sources of these lengths, (B,), and S = `size`."""
        block, places = self.block, torch.arange(3 * self.block)
        padding = (0, missing(size, block))
        blocks = functional.pad(within(lengths, size), padding).unflatten(1, (-1, block))
        real = beside(blocks[:, :, None, :, None])[..., 0]  # (B, N, 1, 3·L)
        own = places[block : 2 * block]
        is_near = (places - own[:, None]).abs() < block  # (L, 3·L)
        visible = real[..., None, :] & is_near  # (B, N, 1, L, 3·L)
        bias = self.relative(own[None], places)[:, None]  # (1, 1, H, L, 3·L)
        if self.relative_sums is None:
            return Scores(visible, bias)
        whole = (lengths // self.summed)[:, None]  # (B, 1): sums of a source
        numbers = torch.arange((size + self.summed - 1) // self.summed)  # (G,)
        # The last whole sum has the positions behind it too; padding is in none.
        sums = torch.minimum(torch.arange(size)[None] // self.summed, whole - 1)  # (B, S)
        members = (sums[:, None] == numbers[:, None]) & within(lengths, size)[:, None]
        seen = (numbers < whole)[:, None, None, None]  # (B, 1, 1, 1, G)
        by_sum = functional.pad(self.relative_sums(sums, numbers), (0, 0, *padding))
        by_sum = in_blocks(by_sum, block)  # (B, N, H, L, G)
        return Scores(
            torch.cat([visible, _like(seen, visible)], dim=-1),
            torch.cat([_like(bias, by_sum), by_sum], dim=-1),
            members.float(),
        )


def _like(x: Tensor, other: Tensor) -> Tensor:
    """`x` with the dimensions of `other`, but for the last."""
    return x.expand(*other.shape[:-1], x.shape[-1])


class LongT5(nn.Module):
    """Both stacks over one table of tokens."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        tokens = nn.Embedding(config.t5.vocabulary_size, config.t5.width)
        self.encoder = Encoder(config, tokens)
        self.decoder = t5.Decoder(config.t5, tokens)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: T5's, and those of the encoder's attention."""
    names, own = t5.rename(config.t5), _NAMES[config.kind]
    table = {
        name.replace(".SelfAttention", f".{own}") if name.startswith("encoder.") else name: entry
        for name, entry in names.table.items()
    }
    if config.kind == "transient-global":
        first = f"encoder.block.0.layer.0.{own}"
        table[f"{first}.global_relative_attention_bias"] = "encoder.relative_sums.bias"
        for layer in range(config.t5.encoder_layers):
            theirs = f"encoder.block.{layer}.layer.0.{own}.global_input_layer_norm"
            table[theirs] = f"encoder.blocks.{layer}.attention.sum_norm"
    return Rename(table, names.optional, names.tied)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    t5.ARCHITECTURE,
    name="longt5",
    tasks={"generate": no_section},
    read_config=read_config,
    build=LongT5,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(
        model, model.encoder.tokens, traced=3 * max(model.encoder.block, model.encoder.summed) - 1
    ),
    tasks_of=None,
)
