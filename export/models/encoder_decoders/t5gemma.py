"""T5Gemma: Gemma as an encoder, and Gemma that attends to a source as its decoder.

Papers: Zhang et al. 2025, "Encoder-Decoder Gemma: Improving the Quality-Efficiency Trade-Off via
Adaptation", §3 (arXiv 2504.06225): Gemma 2. Zhang et al. 2025, "T5Gemma 2: Seeing, Reading, and
Understanding Longer", §2 (arXiv 2512.14856): Gemma 3, at the end of this file; its images are in
`vision_language/gemma_images.py`.
Checkpoints: `google/t5gemma-*` (`model_type: t5gemma`), `google/t5gemma-2-*` (`t5gemma2`).

Legend: B batch, R decoder rows, W rows of a sequence, T new positions, P positions of the cache,
S source positions, H heads, G key and value heads, K width of a head, D width.

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
from typing import Any, cast

import torch
from torch import Tensor, nn

from export.architecture import Architecture, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, projections
from export.decoder_graphs.transformer import alignment, text_to_text_graphs
from export.layers.attention.attention import SelfAttention, causal, repeat_groups, within
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, KeyValue, Rows
from export.layers.blocks import DecoderBlock, EncoderBlock
from export.layers.decoder import output_name, output_table
from export.models.decoders import gemma, llama
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

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


def make_encoder_block(config: llama.Config, attention: SelfAttention) -> EncoderBlock:
    """Self-attention and MLP, between norms."""
    if config.has_head_norms:
        norm = partial(config.norm, attention.heads.width, eps=config.norm_epsilon)
        attention.query_norm, attention.key_norm = norm(), norm()
    return EncoderBlock(
        attention,
        config.mlp(config.width, config.mlp_width, config.activation),
        partial(config.norm, config.width, eps=config.norm_epsilon),
        is_norm_first=True,
        behind=config.behind,
    )


class Encoder(nn.Module):
    """Source tokens → source representations."""

    attention = SelfAttention

    def __init__(self, config: llama.Config, tokens: nn.Embedding) -> None:
        super().__init__()
        self.tokens = tokens
        self.scale = config.embedding_scale
        self.blocks = nn.ModuleList(
            make_encoder_block(config, self.attention(heads)) for heads in config.layers
        )
        self.norm = config.norm(config.width, eps=config.norm_epsilon)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, S) → (B, S, D); values at padding are meaningless."""
        return self.read(self.embed(tokens), tokens, lengths)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, D)."""
        return self.tokens(tokens) * self.scale

    def read(self, x: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """The same of embeddings (B, S, D)."""
        for block in self.blocks:
            x = block(x, lengths)
        return self.norm(x)


class T5Gemma(nn.Module):
    """Both stacks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        own = config.encoder
        self.encoder = Encoder(own, nn.Embedding(own.vocabulary_size, own.width))
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


# ------------------------------------------------------------------------------------- T5Gemma 2


@dataclass(frozen=True)
class Config2(Config):
    """Both stacks, and what their tables share."""

    image_end: int
    """The token behind an image."""


def read_t5gemma2(values: Mapping[str, Any]) -> Config2:
    """The configuration; unsupported fields that would change the network are refused.

    Raises:
        CheckpointError: the stacks have other widths or vocabularies.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    reader.refuse_unless(is_encoder_decoder=True)
    source = reader.section("encoder")
    sections = source.section("text_config"), reader.section("decoder")
    encoder, decoder = (
        replace(gemma.read_gemma3(each.values, each.place), embedding_scale=1.0)
        for each in sections
    )
    sizes = [(side.width, side.vocabulary_size) for side in (encoder, decoder)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            "config.json: hidden_size and vocab_size of encoder and decoder must be equal, not "
            f"{sizes[0]} and {sizes[1]}"
        )
    is_tied = reader.flag("tie_word_embeddings", True)
    end = source.integer("eoi_token_index", 256_000)
    return Config2(encoder, replace(decoder, has_tied_output=is_tied), end)


class Tokens(nn.Embedding):
    """Scaled vectors of tokens; the one behind an image has a vector that is not scaled."""

    def __init__(self, config: Config2) -> None:
        super().__init__(config.encoder.vocabulary_size, config.encoder.width)
        self.scale, self.image_end = config.encoder.width**0.5, config.image_end
        self.end = nn.Parameter(torch.zeros(config.encoder.width))

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) → (B, T, D)."""
        is_end = (tokens == self.image_end)[..., None]
        return torch.where(is_end, self.end, super().forward(tokens) * self.scale)


class NearAttention(SelfAttention):
    """Self-attention of an encoder; a window of even length has one position more behind."""

    def near(self, size: int, window: int) -> Tensor:
        """(size, size) bool: which positions are in the window of a query."""
        places = torch.arange(size)
        distance = places[:, None] - places
        return (distance < (window + 1) // 2) & (-distance <= window // 2)


class MergedAttention(CachedAttention):
    """Causal self-attention and cross-attention with the same projections and one softmax."""

    def forward(
        self,
        x: Tensor,
        past: KeyValue,
        rows: Rows,
        bias: Tensor | None = None,
        cross: KeyValue | None = None,
        source: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """(R, T, D) → (R, T, D), and the cache as in `CachedAttention`; no bias.

        Args:
            cross: What `project_kv` computed.
            source: (B,) int32, source positions that are no padding.
        """
        assert cross is not None
        weights, present = self.weigh(x, past, rows, cross, source)
        room, width = past[0].shape[2], self.heads.width
        own = weights[..., :room] @ repeat_groups(present[1][..., :width], self.heads)
        others = regroup(weights[..., room:], cross[1].shape[0])
        read = regroup(others @ repeat_groups(cross[1], self.heads), x.shape[0])
        return self.out(self.join(own + read)), present

    def weigh(
        self, x: Tensor, past: KeyValue, rows: Rows, cross: KeyValue, source: Tensor | None
    ) -> tuple[Tensor, KeyValue]:
        """Weights of the target's keys, then of the source's, (R, H, T, P + S), and the cache."""
        query, key, value = self.project(x, rows)
        positions, hidden = rows.positions(x.shape[1]), float("-inf")
        present = self._write(past[0], key, positions), self._write(past[1], value, positions)
        query = query * self.heads.score_scale
        keys = repeat_groups(present[0][..., : self.heads.width], self.heads)
        visible = causal(positions, past[0].shape[2], self.heads.window)[:, None]
        own = (query @ keys.transpose(-1, -2)).masked_fill(~visible, hidden)
        keys = repeat_groups(cross[0], self.heads)
        others = regroup(query, keys.shape[0]) @ keys.transpose(-1, -2)  # (B, H, W·T, S)
        if source is not None:
            visible = within(source, keys.shape[2])[:, None, None]
            others = others.masked_fill(~visible, hidden)
        scores = torch.cat([own, regroup(others, x.shape[0])], dim=-1)
        return scores.softmax(dim=-1), present

    def project_kv(self, source: Tensor) -> KeyValue:
        """(B, S, D) → keys and values, each (B, G, S, K); they do not rotate."""
        assert self.key_norm is not None
        return self.key_norm(self.split(self.key(source))), self.split(self.value(source))

    def pack(self) -> None:
        """Nothing: it keeps to standard operators."""


def regroup(x: Tensor, count: int) -> Tensor:
    """(R, H, T, N) → (B, H, W·T, N), or back: rows of one sequence as one row, for `count` rows."""
    heads, last = x.shape[1], x.shape[3]
    return x.transpose(1, 2).reshape(count, -1, heads, last).transpose(1, 2)


class MergedBlock(DecoderBlock):
    """Merged attention and MLP, between norms."""

    attention: MergedAttention

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        past: KeyValue,
        cross: KeyValue | None = None,
        source: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """(R, T, D) → (R, T, D) and the layer's cache with the new positions."""
        attended, present = self.attention(self.attention_norm(x), past, rows, bias, cross, source)
        return self.finish(x, attended), present


class Encoder2(Encoder):
    """The same, with the windows of T5Gemma 2."""

    attention = NearAttention


class Decoder2(llama.Llama):
    """Target tokens and the source's keys and values → scores of the next token."""

    is_aligned = False  # the target has a part of each attention

    def __init__(self, config: llama.Config, tokens: nn.Embedding) -> None:
        super().__init__(config)
        self.tokens = tokens
        self.output = output_table(tokens, is_tied=config.has_tied_output)
        norm = partial(config.norm, eps=config.norm_epsilon)
        self.blocks = nn.ModuleList(
            MergedBlock(
                MergedAttention(heads, norm),
                config.mlp(config.width, config.mlp_width, config.activation),
                partial(norm, config.width),
                is_norm_first=True,
                behind=config.behind,
            )
            for heads in config.layers
        )

    def project_cross_kv(self, source: Tensor) -> list[KeyValue]:
        """Encoder output (B, S, D) → each layer's keys and values."""
        blocks = cast(list[MergedBlock], list(self.blocks))
        return [block.attention.project_kv(source) for block in blocks]


class T5Gemma2(nn.Module):
    """Both stacks."""

    def __init__(self, config: Config2) -> None:
        super().__init__()
        tokens = Tokens(config)
        self.encoder = Encoder2(config.encoder, tokens)
        is_tied = config.decoder.has_tied_output
        self.decoder = Decoder2(config.decoder, tokens if is_tied else Tokens(config))


def rename_t5gemma2(config: Config2) -> Rename:
    """`transformers`' names → ours, with or without `text_model`."""
    names, is_tied = rename(config).table, config.decoder.has_tied_output
    for side in ("encoder", "decoder"):
        ours, theirs = "encoder" if is_tied else side, f"model.{side}"
        names[f"{theirs}.embed_tokens"] = f"{ours}.tokens"
        names[f"{theirs}.embed_tokens.eoi_embedding"] = f"{ours}.tokens.end"
        for name in ("query", "key"):
            attention = f"{theirs}.layers.*.self_attn.{name[0]}_norm"
            names[attention] = f"{side}.blocks.*.attention.{name}_norm"
    if is_tied:
        names["lm_head.out_proj.weight"] = "encoder.tokens.weight"
    start = "model.encoder."
    names |= {name.replace(start, f"{start}text_model."): own for name, own in names.items()}
    return Rename(names)
