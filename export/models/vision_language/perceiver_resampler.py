"""The Perceiver resampler: an image's many vectors become a fixed number of latent ones.

Paper: Alayrac et al. 2022, "Flamingo: a Visual Language Model for Few-Shot Learning", §2.1 and
figure 5 (arXiv 2204.14198): learned latents attend to the image's vectors and to themselves.
Part of `idefics.py`, in the names and with the defaults of `transformers`' Idefics; and, with RMS
norms, gated MLPs and shared keys and values, of Idefics2 in `idefics3.py`.

Legend: B batch, S vectors of an image, L latents, D width, H heads, K width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.config.config_reader import key
from export.config.weight_names import Entry, projections
from export.layers.attention.attention import Attention, repeat_groups
from export.layers.attention.heads import Heads
from export.layers.blocks import MLP


class Weight(nn.Module):
    """What a norm multiplies by, where the vectors are normalised already."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """(…, D) → (…, D)."""
        return x * self.weight


@dataclass(frozen=True)
class Config:
    """Shape of a resampler."""

    width: int
    """D, that of the vectors."""
    latents: int = key("resampler_n_latents", 64)
    """L."""
    layers: int = key("resampler_depth", 6, "layers")
    heads: int = key("resampler_n_heads", 16)
    head_width: int = key("resampler_head_dim", 96)
    has_head_norms: bool = key("qk_layer_norms_perceiver", False)
    """Whether each head's queries and keys are normalised."""
    groups: int | None = None
    """Heads of keys and values; None: H."""
    norm: Callable[[int], nn.Module] = nn.LayerNorm
    context_norm: type[Weight] | None = None
    """Of the vectors in each block, which one norm without a weight is then in front of: ONNX
    Runtime shares the steps of an RMS norm between blocks, and does not fuse what is shared."""
    mlp: type[MLP] = MLP
    activation: str = "relu"

    @property
    def mlp_width(self) -> int:
        """Four times D."""
        return 4 * self.width


class LatentAttention(Attention):
    """Latents attend to the image's vectors and to the latents, as one sequence of keys."""

    def __init__(self, config: Config) -> None:
        heads = Heads(
            config.width,
            config.heads,
            bias=False,
            head_width=config.head_width,
            out_bias=False,
            key_value_count=config.groups,
        )
        super().__init__(heads)
        self.context_norm = (config.context_norm or config.norm)(config.width)
        self.latents_norm = config.norm(config.width)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        if config.has_head_norms:
            self.query_norm = nn.LayerNorm(heads.width)
            self.key_norm = nn.LayerNorm(heads.width)

    def forward(self, context: Tensor, latents: Tensor) -> Tensor:
        """(B, S, D) and (B, L, D) → (B, L, D)."""
        latents = self.latents_norm(latents)
        read = torch.cat([self.context_norm(context), latents], dim=1)  # (B, S + L, D)
        query = self.normalise_heads(self.query(latents), self.query_norm)
        key, value = self.normalise_heads(self.key(read), self.key_norm), self.value(read)
        if self.heads.groups < self.heads.count:
            key, value = (
                self.join(repeat_groups(self.split(part), self.heads)) for part in (key, value)
            )
        return self.out(self.mix(query, key, value))


class ResamplerBlock(nn.Module):
    """Attention of the latents and an MLP, each behind a norm and with a residual."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = LatentAttention(config)
        self.mlp_norm = config.norm(config.width)
        self.mlp = config.mlp(config.width, config.mlp_width, config.activation, bias=False)

    def forward(self, context: Tensor, latents: Tensor) -> Tensor:
        """(B, S, D) and (B, L, D) → (B, L, D)."""
        latents = latents + self.attention(context, latents)
        return latents + self.mlp(self.mlp_norm(latents))


class PerceiverResampler(nn.Module):
    """Vectors of an image → L latents."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(config.latents, config.width))
        self.blocks = nn.ModuleList(ResamplerBlock(config) for _ in range(config.layers))
        self.norm = config.norm(config.width)
        self.context_norm: nn.Module = nn.Identity()
        if config.context_norm is not None:
            self.context_norm = config.norm(config.width)
            del self.context_norm.weight
            self.context_norm.register_buffer("weight", torch.ones(config.width), persistent=False)

    def forward(self, context: Tensor) -> Tensor:
        """(B, S, D) → (B, L, D)."""
        context = self.context_norm(context)
        latents = self.latents.expand(context.shape[0], -1, -1)
        for block in self.blocks:
            latents = block(context, latents)
        return self.norm(latents)


def rename(theirs: str, ours: str) -> dict[str, Entry]:
    """The table of a resampler, under prefixes without their last dot."""
    block, own = f"{theirs}.blocks.*.*", f"{ours}.blocks.*"
    norms = {"q": "query", "k": "key", "context": "context", "latents": "latents"}
    return {
        f"{theirs}.latents": f"{ours}.latents",
        f"{theirs}.layer_norm": f"{ours}.norm",
        **projections(block, f"{own}.attention", "q_proj k_proj v_proj output_proj"),
        **{f"{block}.{n}_layer_norm": f"{own}.attention.{part}_norm" for n, part in norms.items()},
        f"{block}.ln": f"{own}.mlp_norm",
        f"{block}.fc": f"{own}.mlp.up",
        f"{block}.c_proj": f"{own}.mlp.down",
    }
