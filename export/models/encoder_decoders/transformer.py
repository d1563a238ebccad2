"""The original Transformer.

Paper: Vaswani et al. 2017, "Attention Is All You Need", §3 (arXiv 1706.03762): norms follow the
sub-layers, sinusoidal positions, one table for source, target and output.
Checkpoints: `model_type: transformer`, our own format; `transformers` has no such model. Tensors
have the names of `torch.nn.Transformer` in a module with the attributes `embedding` and
`transformer`.

Legend: B batch, R decoder rows, T new positions, S source positions, D model width, V vocabulary.

Differences from the paper: `final_norm` adds the norm behind each stack that `torch.nn.Transformer`
has; `activation` may be another one than ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, language_pairs
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, packed_projections
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.positions import interleaved_sinusoids
from export.layers.blocks import BlockConfig, make_decoder_blocks, make_encoder_blocks
from export.layers.decoder import TransformerDecoder, tied_logits
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class Config(BlockConfig):
    """The network's part of `config.json`; `layers` are the encoder's."""

    supported = {"norm_first": False}
    vocabulary_size: int = key("vocab_size")
    positions: int = key("max_positions")
    """Longest source and target; the paper's table has no end."""
    decoder_layers: int = key("num_decoder_layers", 6, "layers")
    has_final_norm: bool = key("final_norm", False)

    @property
    def limits(self) -> Limits:
        """Source and target each."""
        return Limits(max_input_tokens=self.positions, max_total_tokens=self.positions)


_NAMES = {
    "num_hidden_layers": "num_encoder_layers",
    "hidden_size": "d_model",
    "num_attention_heads": "nhead",
    "intermediate_size": "dim_feedforward",
    "hidden_act": "activation",
}
_DEFAULTS = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "hidden_act": "relu",
    "layer_norm_eps": 1e-5,
}


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are the base model of the paper's table 3."""
    return ConfigReader(values, defaults=_DEFAULTS, names=_NAMES).read(Config)


# --------------------------------------------------------------------------------------- network


def make_final_norm(config: Config) -> nn.Module:
    """What follows a stack."""
    if not config.has_final_norm:
        return nn.Identity()
    return nn.LayerNorm(config.width, eps=config.norm_epsilon)


class Embedding(nn.Module):
    """Token and position embeddings (§3.4, §3.5)."""

    positions: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.scale = config.width**0.5
        table = interleaved_sinusoids(config.positions, config.width)
        self.register_buffer("positions", table, persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(B, T) tokens at (B or 1, T) positions → (B, T, D)."""
        # The padding of a ragged prefill may lie beyond the table.
        positions = positions.clamp(max=self.positions.shape[0] - 1)
        return self.tokens(tokens) * self.scale + self.positions[positions]


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: Config, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding
        self.blocks = make_encoder_blocks(config, is_norm_first=False)
        self.norm = make_final_norm(config)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        x = self.embedding(tokens, torch.arange(tokens.shape[1])[None])
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x)


class Decoder(TransformerDecoder):
    """Target tokens and the source's keys and values → scores of the next token."""

    def __init__(self, config: Config, embedding: Embedding) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.embedding = embedding
        own = replace(config, layers=config.decoder_layers)
        self.blocks = make_decoder_blocks(own, is_norm_first=False)
        self.norm = make_final_norm(config)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.embedding(tokens, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V): products with the embeddings (§3.4)."""
        return tied_logits(hidden, self.embedding.tokens.weight)


class Transformer(nn.Module):
    """Both stacks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        embedding = Embedding(config)
        self.encoder = Encoder(config, embedding)
        self.decoder = Decoder(config, embedding)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """The names of `torch.nn.Transformer` → ours."""
    table: dict[str, Entry] = {"embedding": "encoder.embedding.tokens"}
    for side in ("encoder", "decoder"):
        theirs, ours = f"transformer.{side}.layers.*", f"{side}.blocks.*"
        table |= packed_projections(f"{theirs}.self_attn", f"{ours}.attention")
        last = "norm2" if side == "encoder" else "norm3"
        table |= {
            f"{theirs}.linear1": f"{ours}.mlp.up",
            f"{theirs}.linear2": f"{ours}.mlp.down",
            f"{theirs}.norm1": f"{ours}.attention_norm",
            f"{theirs}.{last}": f"{ours}.mlp_norm",
            f"transformer.{side}.norm": f"{side}.norm" if config.has_final_norm else None,
        }
    theirs, ours = "transformer.decoder.layers.*", "decoder.blocks.*"
    table |= packed_projections(f"{theirs}.multihead_attn", f"{ours}.cross")
    table[f"{theirs}.norm2"] = f"{ours}.cross_norm"
    return Rename(table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="transformer",
    tasks={"translate": language_pairs},
    read_config=read_config,
    build=Transformer,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(model, model.encoder.embedding.tokens),
    details=lambda network: alignment(network.decoder),
)
