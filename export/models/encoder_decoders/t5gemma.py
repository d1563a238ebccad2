"""T5Gemma: Gemma 2 as an encoder, and Gemma 2 with cross-attention as its decoder.

Paper: Zhang et al. 2025, "Encoder-Decoder Gemma: Improving the Quality-Efficiency Trade-Off via
Adaptation", §3 (arXiv 2504.06225).
Checkpoints: `google/t5gemma-*` (`model_type: t5gemma`).

Legend: B batch, S source positions, D width.

Positions of a source attend in both directions; layers with a window, to those as far away as it is
long. The two stacks may have other sizes, and each has a table of tokens. Cross-attention rotates
nothing, and its scores are capped like those of self-attention.
Differences from `transformers`: as in `gemma.py`; a padding token within a text is read, which it
hides where no mask is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, projections
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import EncoderBlock
from export.layers.decoder import output_name
from export.models.decoders import gemma, llama
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """Both stacks."""

    encoder: llama.Config
    decoder: llama.Config

    @property
    def limits(self) -> Limits:
        """Each stack's positions bound its side."""
        return Limits(
            max_input_tokens=self.encoder.positions, max_total_tokens=self.decoder.positions
        )


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True)
    sections = (reader.section(side) for side in ("encoder", "decoder"))
    encoder, decoder = (gemma.read_gemma2(each.values, each.place) for each in sections)
    is_tied = reader.flag("tie_word_embeddings", True)
    decoder = replace(decoder, source_width=encoder.width, has_tied_output=is_tied)
    return Config(replace(encoder, layers=tuple(map(_both_ways, encoder.layers))), decoder)


def _both_ways(heads: Heads) -> Heads:
    """The same heads in an encoder, whose window holds one more position on either side."""
    return heads if heads.window is None else replace(heads, window=heads.window + 1)


# --------------------------------------------------------------------------------------- network


def make_encoder_block(config: llama.Config, heads: Heads) -> EncoderBlock:
    """Self-attention and MLP, between norms."""
    return EncoderBlock(
        SelfAttention(heads),
        config.mlp(config.width, config.mlp_width, config.activation),
        partial(config.norm, config.width, eps=config.norm_epsilon),
        is_norm_first=True,
        behind=config.behind,
    )


class Encoder(nn.Module):
    """Source tokens → source representations."""

    def __init__(self, config: llama.Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.scale = config.embedding_scale
        self.blocks = nn.ModuleList(make_encoder_block(config, heads) for heads in config.layers)
        self.norm = config.norm(config.width, eps=config.norm_epsilon)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        x = self.tokens(tokens) * self.scale
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x)


class T5Gemma(nn.Module):
    """Both stacks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = Encoder(config.encoder)
        self.decoder = llama.Llama(config.decoder)


# ----------------------------------------------------------------------------------------- names


_SUBLAYERS = {"self_attn": "attention", "cross_attn": "cross", "feedforward": "mlp"}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    head = output_name(is_tied=config.decoder.has_tied_output)
    names: Names = {"lm_head.out_proj.weight": f"decoder.{head}"}
    for side in ("encoder", "decoder"):
        names[f"model.{side}.embed_tokens"] = f"{side}.tokens"
        names[f"model.{side}.norm"] = f"{side}.norm"
        theirs, ours = f"model.{side}.layers.*", f"{side}.blocks.*"
        for name, own in _SUBLAYERS.items():
            names[f"{theirs}.pre_{name}_layernorm"] = f"{ours}.{own}_norm"
            names[f"{theirs}.post_{name}_layernorm"] = f"{ours}.{own}_out_norm"
        for name in ("self_attn", "cross_attn"):
            own = f"{ours}.{_SUBLAYERS[name]}"
            names |= projections(f"{theirs}.{name}", own, "q_proj k_proj v_proj o_proj")
        for name in ("gate", "up", "down"):
            names[f"{theirs}.mlp.{name}_proj"] = f"{ours}.mlp.{name}"
    return Rename(names)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="t5gemma",
    tasks={"generate": no_section},
    read_config=read_config,
    build=T5Gemma,
    rename=rename,
    graphs=lambda model, image: text_to_text_graphs(model, model.encoder.tokens),
    details=lambda network: alignment(network.decoder),
)
