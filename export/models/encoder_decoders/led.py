"""LED: BART whose encoder attends to near positions and to the first one, as Longformer does.

Paper: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", §3 and §7 (arXiv
2004.05150).
Checkpoints: `allenai/led-*` and summarisers made from them (`model_type: led`).

Legend: B batch, S source positions, N blocks, L positions of a block, H heads, K width of a head,
D width.

Positions attend to those at most L away and to the first one, which attends to all with projections
of its own.
Differences from `transformers`: as in `bart.py`, whose decoder this is. There the caller gives the
tokens that attend to all, and none are unless `global_attention_mask` is given; here it is always
the first token of the source, as in the paper's summaries (§7).
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
from export.config.weight_names import Names, Rename, projections
from export.decoder_graphs.transformer import text_to_text_graphs
from export.layers.attention.attention import Attention, within
from export.layers.attention.heads import Heads
from export.layers.attention.near import attend_near, beside, in_blocks, join_blocks, missing
from export.models.encoder_decoders import bart
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

FORM = bart.Form(first_row=0)


@dataclass(frozen=True)
class Config:
    """BART's configuration of each side, which differ in the number of positions."""

    decoder: bart.Config
    encoder: bart.Config
    blocks: tuple[int, ...]
    """L of each layer of the encoder: half of its window."""

    @property
    def limits(self) -> Limits:
        """Each side's position table bounds it."""
        return Limits(
            max_input_tokens=self.encoder.positions, max_total_tokens=self.decoder.positions
        )


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused.

    Raises:
        CheckpointError: a window has no middle, or not one for each layer.
    """
    names = {"max_position_embeddings": "max_decoder_position_embeddings"}
    reader = ConfigReader(values, names=names)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True, scale_embedding=False)
    config = bart.read_sizes(reader, FORM)
    layers = config.encoder.layers
    if isinstance(values.get("attention_window"), list):
        windows = reader.sizes("attention_window", count=layers)
    else:
        windows = (reader.integer("attention_window", 512),) * layers
    for window in windows:
        if window % 2:
            raise CheckpointError(f"config.json: attention_window = {window} must be even")
    positions = reader.integer("max_encoder_position_embeddings", 16384)
    encoder = replace(config, positions=positions)
    return Config(config, encoder, tuple(window // 2 for window in windows))


# --------------------------------------------------------------------------------------- network


class FirstAndNearAttention(Attention):
    """Positions attend to near ones and to the first one, which attends to all of them.

    Args:
        block: L, the farthest distance of near positions.
    """

    def __init__(self, heads: Heads, block: int) -> None:
        super().__init__(heads)
        self.block = block
        width = heads.model_width
        self.first_query, self.first_key, self.first_value = (
            nn.Linear(width, width) for _ in range(3)
        )

    def forward(self, x: Tensor, lengths: Tensor, bias: Tensor | None = None) -> Tensor:
        """(B, S, D) → (B, S, D); there is no bias of the scores."""
        size = x.shape[1]
        first, keys, values = self.first_query(x[:, :1]), self.first_key(x), self.first_value(x)
        read = self.mix(first, keys, values, lengths)  # (B, 1, D)
        padding = (0, missing(size, self.block))
        padded = functional.pad(x, (0, 0, *padding))
        query, key, value = (
            self.split(part(padded)) for part in (self.query, self.key, self.value)
        )
        other = key[:, None, :, :1], value[:, None, :, :1]
        query, key, value = (in_blocks(part, self.block) for part in (query, key, value))
        visible = functional.pad(self.near(lengths, size, padding), (0, 1), value=True)
        mixed = attend_near(self.heads, query, (beside(key), beside(value)), other, visible)
        is_first = (torch.arange(size) == 0)[:, None]
        return self.out(torch.where(is_first, read, join_blocks(mixed)[:, :size]))

    def near(self, lengths: Tensor, size: int, padding: tuple[int, int]) -> Tensor:
        """Which near positions are seen, the first one left out: (B, N, 1, L, 3·L) bool."""
        others = within(lengths, size) & (torch.arange(size) > 0)
        blocks = functional.pad(others, padding).unflatten(1, (-1, self.block))
        real = beside(blocks[:, :, None, :, None])[..., 0]  # (B, N, 1, 3·L)
        places = torch.arange(3 * self.block)
        own = places[self.block : 2 * self.block]
        return real[..., None, :] & ((places - own[:, None]).abs() <= self.block)


class Encoder(bart.Encoder):
    """Source tokens → source representations."""

    def __init__(self, config: Config, tokens: nn.Embedding) -> None:
        super().__init__(config.encoder, tokens)
        for block, size in zip(self.blocks, config.blocks, strict=True):
            block.attention = FirstAndNearAttention(config.encoder.encoder.heads, size)


def build(config: Config) -> bart.Bart:
    """Both stacks."""
    return bart.Bart(config.decoder, partial(Encoder, config))


# ----------------------------------------------------------------------------------------- names

_PARTS = ("query", "key", "value")


def rename(config: Config) -> Rename:
    """BART's names → ours; the prefix and the encoder's attention have others."""
    names, attention = bart.rename(config.decoder), "encoder.layers.*.self_attn"
    table = {
        name.replace("model.", "led.", 1): entry
        for name, entry in names.table.items()
        if f"{attention}." not in name
    }
    for prefix in ("led.", ""):
        theirs, ours = f"{prefix}{attention}", "encoder.blocks.*.attention"
        inner = f"{theirs}.longformer_self_attn"
        own: Names = {f"{inner}.{part}_global": f"{ours}.first_{part}" for part in _PARTS}
        parts = " ".join(f"longformer_self_attn.{part}" for part in _PARTS)
        table |= own | projections(theirs, ours, f"{parts} output")
    return Rename(table, names.optional, names.tied)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    bart.declare("led", {"generate": no_section}),
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(
        model,
        model.encoder.embedding.tokens,
        traced=3 * max(block.attention.block for block in model.encoder.blocks) - 1,
    ),
)
