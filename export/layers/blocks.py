"""Transformer blocks: norms, feed-forward blocks, sub-layers with residuals.

Behind, as in Vaswani et al. 2017, §3.1 (arXiv 1706.03762); in front, as in Radford et al. 2019,
§2.3, and Dosovitskiy et al. 2020 (arXiv 2010.11929). A block is given its sub-layers, so a model
file chooses attention, MLP and norm and writes no `forward`.

Legend: B batch, R rows, T new positions, S source positions, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from export.config.config_reader import key
from export.layers.activation import activation
from export.layers.attention.attention import CrossAttention, SelfAttention
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, KeyValue, Rows


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · weight over the last dimension, without mean or bias.

    Written with a division and a square root because ONNX Runtime recognises that form and runs it
    as one operator.

    Args:
        offset: Added to the weight as it is used; Gemma stores the weight's distance from 1.
    """

    def __init__(self, width: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1.0 - offset))
        self.eps = eps
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        magnitude = (x.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt()
        weight = self.weight + self.offset if self.offset else self.weight
        return x / magnitude * weight


class MLP(nn.Module):
    """Up, a non-linearity, down: (…, D) → (…, D)."""

    def __init__(
        self, width: int, inner_width: int, activation_name: str, *, bias: bool = True
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner_width, bias=bias)
        self.activation = activation(activation_name)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """The block without its residual."""
        return self.down(self.activation(self.up(x)))


class GatedMLP(MLP):
    """A second projection up, behind the non-linearity, multiplies the first (Shazeer 2020,
    "GLU Variants Improve Transformer", arXiv 2002.05202): (…, D) → (…, D).
    """

    def __init__(
        self, width: int, inner_width: int, activation_name: str, *, bias: bool = False
    ) -> None:
        super().__init__(width, inner_width, activation_name, bias=bias)
        self.gate = nn.Linear(width, inner_width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Scale(nn.Module):
    """x · factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return x * self.factor


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """A stack of blocks, all of one form."""

    layers: int = key("num_hidden_layers", kind="layers")
    heads: Heads = key()
    mlp_width: int = key("intermediate_size")
    activation: str = key("hidden_act", "gelu", "activation")
    norm_epsilon: float = key("layer_norm_eps", 1e-12)

    @property
    def width(self) -> int:
        """D."""
        return self.heads.model_width


BASE = {
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
"""Defaults of most families: BERT-base's, and ViT-B's."""


MakeNorm = Callable[[], nn.Module]


class Block(nn.Module):
    """Attention and MLP, residual sub-layers with one norm each.

    Args:
        behind: What the outputs of sub-layers pass before they are added.
    """

    def __init__(
        self,
        attention: nn.Module,
        mlp: nn.Module,
        norm: MakeNorm,
        *,
        is_norm_first: bool,
        behind: MakeNorm = nn.Identity,
    ) -> None:
        super().__init__()
        self.is_norm_first = is_norm_first
        self.attention = attention
        self.attention_norm = norm()
        self.attention_out_norm = behind()
        self.mlp = mlp
        self.mlp_norm = norm()
        self.mlp_out_norm = behind()

    def before(self, norm: nn.Module, x: Tensor) -> Tensor:
        """The input of a sub-layer."""
        return norm(x) if self.is_norm_first else x

    def after(self, norm: nn.Module, x: Tensor) -> Tensor:
        """The output of a sub-layer, its residual added."""
        return x if self.is_norm_first else norm(x)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention, each position by itself: (B, T, D), (B, T, D) → (B, T, D)."""
        return self.run_mlp(self.after(self.attention_norm, x + self.attention_out_norm(attended)))

    def run_mlp(self, x: Tensor) -> Tensor:
        """The last sub-layer: (B, T, D) → (B, T, D)."""
        inner = self.mlp_out_norm(self.mlp(self.before(self.mlp_norm, x)))
        return self.after(self.mlp_norm, x + inner)


class EncoderBlock(Block):
    """Self-attention and MLP."""

    attention: SelfAttention

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """(B, T, D) → (B, T, D); `bias` of the scores as in `SelfAttention`."""
        attended = self.attention(self.before(self.attention_norm, x), lengths, bias)
        return self.finish(x, attended)

    def first(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, T, D) → (B, 1, D): the first position alone, where nothing reads the others."""
        attended = self.attention.first(self.before(self.attention_norm, x), lengths)
        return self.finish(x[:, :1], attended)

    def attention_weights(self, x: Tensor) -> Tensor:
        """The attention of this block's input `x` (B, T, D) to itself: (B, T, T)."""
        return self.attention.weights(self.before(self.attention_norm, x))


def make_encoder_blocks(
    config: BlockConfig,
    *,
    is_norm_first: bool,
    is_causal: bool = False,
    behind: MakeNorm = nn.Identity,
) -> nn.ModuleList:
    """Blocks with layer norms, self-attention and MLP of one form.

    Args:
        behind: As in `EncoderBlock`.
    """
    return nn.ModuleList(
        EncoderBlock(
            SelfAttention(config.heads, is_causal=is_causal),
            MLP(config.width, config.mlp_width, config.activation),
            partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
            is_norm_first=is_norm_first,
            behind=behind,
        )
        for _ in range(config.layers)
    )


class DecoderBlock(Block):
    """Causal self-attention on a cache, cross-attention where there is a source, MLP."""

    attention: CachedAttention

    def __init__(
        self,
        attention: CachedAttention,
        mlp: nn.Module,
        norm: MakeNorm,
        cross: CrossAttention | None = None,
        *,
        is_norm_first: bool,
        behind: MakeNorm = nn.Identity,
    ) -> None:
        super().__init__(attention, mlp, norm, is_norm_first=is_norm_first, behind=behind)
        if cross is not None:
            self.cross = cross
            self.cross_norm = norm()
            self.cross_out_norm = behind()

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        past: KeyValue,
        cross: KeyValue | None = None,
        source: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """(R, T, D) → (R, T, D) and the layer's cache with the new positions.

        Args:
            cross: Keys and values of the source; None without cross-attention.
            source: (B,) int32, source lengths, where sources are padded.
            bias: Of self-attention's scores, (R, H, T, P).
        """
        x, present = self.self_attention(x, rows, past, bias)
        if cross is not None:
            attended = self.cross(self.before(self.cross_norm, x), cross, source)
            x = self.after(self.cross_norm, x + self.cross_out_norm(attended))
        return self.run_mlp(x), present

    def self_attention(
        self, x: Tensor, rows: Rows, past: KeyValue, bias: Tensor | None = None
    ) -> tuple[Tensor, KeyValue]:
        """The first sub-layer: (R, T, D) and the cache."""
        attended, present = self.attention(self.before(self.attention_norm, x), past, rows, bias)
        return self.after(self.attention_norm, x + self.attention_out_norm(attended)), present

    def read_prefix(self, x: Tensor) -> tuple[Tensor, KeyValue]:
        """(B, N, D) of positions in front of the tokens → (B, N, D) and their part of the cache."""
        attended, present = self.attention.read_prefix(self.before(self.attention_norm, x))
        return self.finish(x, attended), present

    def cross_weights(self, x: Tensor, cross: KeyValue, source: Tensor | None) -> Tensor:
        """The second sub-layer's attention weights, (R, T, S), mean over heads."""
        return self.cross.weights(self.before(self.cross_norm, x), cross, source)


def make_decoder_blocks(
    config: BlockConfig,
    *,
    is_norm_first: bool,
    has_cross: bool = True,
    source_width: int | None = None,
) -> nn.ModuleList:
    """The decoder's blocks of one form, as `make_encoder_blocks`.

    Args:
        source_width: As in `CrossAttention`.
    """
    return nn.ModuleList(
        DecoderBlock(
            CachedAttention(config.heads),
            MLP(config.width, config.mlp_width, config.activation),
            partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
            CrossAttention(config.heads, source_width) if has_cross else None,
            is_norm_first=is_norm_first,
        )
        for _ in range(config.layers)
    )
