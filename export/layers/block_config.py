"""What the blocks of a Transformer have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from export.config.config_reader import ConfigReader
from export.layers.attention.heads import Heads


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A stack of blocks, all of one form."""

    layers: int
    heads: Heads
    mlp_width: int
    activation: str
    norm_epsilon: float

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width


def read_blocks(
    reader: ConfigReader,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    mlp_width: int = 3072,
    activation: str = "gelu",
    norm_epsilon: float = 1e-12,
) -> dict[str, Any]:
    """The fields of `BlockConfig`, as most families name them, with a family's defaults."""
    width = reader.integer("hidden_size", width)
    heads = reader.integer("num_attention_heads", heads)
    reader.divide(width, heads)
    return {
        "layers": reader.layers("num_hidden_layers", layers),
        "heads": Heads(width, heads),
        "mlp_width": reader.integer("intermediate_size", mlp_width),
        "activation": reader.activation("hidden_act", activation),
        "norm_epsilon": reader.number("layer_norm_eps", norm_epsilon),
    }
