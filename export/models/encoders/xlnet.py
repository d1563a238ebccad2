"""XLNet: a language model over permutations; for understanding, its content stream alone is run.

Paper: Yang et al. 2019, "XLNet: Generalized Autoregressive Pretraining for Language Understanding",
§2.3 and appendix A (arXiv 1906.08237); its relative attention is that of Transformer-XL (Dai et al.
2019, §3.3, arXiv 1901.02860).
Checkpoints: `model_type: xlnet`, bare, classifiers, taggers, heads for answers.

Legend: B batch, T positions, H heads, K width of a head, D width.

Differences from `transformers`: there is no memory of earlier segments, as its own pipelines use
none; texts are padded on the right, which relative positions permit; the scores of distances and
segments are a bias of the fused attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, WeightLayout, with_and_without
from export.layers.attention.attention import Attention
from export.layers.attention.heads import Heads
from export.layers.attention.positions import by_distance
from export.layers.blocks import MLP
from export.text_encoders.declaration import class_names, text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import SequenceClassifier, TextEncoder, TextModel
from export.text_encoders.pooling import first, last, mean
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

HEADS = (HeadKind.BARE, HeadKind.SEQUENCE, HeadKind.TOKENS)
ANSWERS = {"XLNetForQuestionAnsweringSimple": HeadKind.ANSWER}
"""Start and end by themselves; `XLNetForQuestionAnswering` searches for the end after the start."""
MAX_TOKENS = 2048
"""The network has no limit, but its scores grow with the square of the length."""
SUMMARIES = {"last": last, "cls_index": last, "first": first, "mean": mean}
SEGMENT_TYPES = 3
"""First text, second text, and the class token behind them."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The encoder and its head.

    Attributes:
        clamp: Distances beyond it are taken for it; 0: none are.
        summary: A key of `SUMMARIES`: the vector that classes are read from.
    """

    supported = {
        "attn_type": "bi",
        "bi_data": False,
        "summary_use_proj": True,
        "summary_proj_to_labels": False,
    }
    vocabulary_size: int = key("vocab_size", 32000)
    layers: int = key("n_layer", 24, "layers")
    heads: Heads
    mlp_width: int = key("d_inner", 4096)
    activation: str = key("ff_activation", "gelu", "activation")
    norm_epsilon: float = key("layer_norm_eps", 1e-12)
    clamp: int
    summary: str = key("summary_type", "last", "choice", supported=SUMMARIES)
    summary_activation: str = key("summary_activation", "tanh")
    head: HeadConfig

    @property
    def limits(self) -> Limits:
        """Ours; the network has none."""
        return Limits(max_input_tokens=MAX_TOKENS)


_NAMES = {"hidden_size": "d_model", "num_attention_heads": "n_head"}
_DEFAULTS = {"hidden_size": 1024, "num_attention_heads": 16}


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=_DEFAULTS, names=_NAMES)
    heads = reader.read(Heads, bias=False, out_bias=False)
    width = heads.model_width
    if width % 2:
        raise CheckpointError(f"{reader.place}: d_model = {width} must be even: sines and cosines")
    reader.refuse_unless(d_head=heads.width)
    return reader.read(
        Config,
        heads=heads,
        clamp=max(0, int(reader.number("clamp_len", -1))),
        head=read_head(reader, "XLNet", HEADS, further=ANSWERS),
    )


# --------------------------------------------------------------------------------------- network


class RelativeAttention(Attention):
    """Scores of contents, distances and segments, each with a bias of the query."""

    def __init__(self, heads: Heads) -> None:
        super().__init__(heads)
        shape = (heads.count, heads.width)
        self.position_key = nn.Linear(heads.model_width, heads.count * heads.width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(shape))
        self.position_bias = nn.Parameter(torch.zeros(shape))
        self.segment_bias = nn.Parameter(torch.zeros(shape))
        self.segments = nn.Parameter(torch.zeros(2, *shape))  # the same one, another one

    def forward(self, x: Tensor, lengths: Tensor, distances: Tensor, differ: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D).

        Args:
            distances: (2·T - 1, D), vectors of T - 1 … -(T - 1), query's position minus key's.
            differ: (B, T, T), whether query and key are in different segments.
        """
        projected, key, value = self.query(x), self.key(x), self.value(x)
        bias = self.heads.score_scale * self.relative_scores(projected, distances, differ)
        query = projected + self.content_bias.flatten()
        return self.out(self.mix(query, key, value, lengths, bias))

    def relative_scores(self, query: Tensor, distances: Tensor, differ: Tensor) -> Tensor:
        """Scores of distances and segments, (B, H, T, T), not scaled."""
        keys = self.position_key(distances).unflatten(-1, (-1, self.heads.width)).permute(1, 2, 0)
        apart = by_distance(self.split(query + self.position_bias.flatten()) @ keys)
        by_segment = self.split(query + self.segment_bias.flatten()) @ self.segments.permute(
            1, 2, 0
        )
        return apart + torch.where(differ[:, None], by_segment[..., 1:], by_segment[..., :1])


class Block(nn.Module):
    """Attention and MLP, each with its norm behind."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.heads.model_width
        self.attention = RelativeAttention(config.heads)
        self.attention_norm = nn.LayerNorm(width, eps=config.norm_epsilon)
        self.mlp = MLP(width, config.mlp_width, config.activation)
        self.mlp_norm = nn.LayerNorm(width, eps=config.norm_epsilon)

    def forward(self, x: Tensor, lengths: Tensor, distances: Tensor, differ: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D); further arguments as of the attention."""
        x = self.attention_norm(x + self.attention(x, lengths, distances, differ))
        return self.mlp_norm(x + self.mlp(x))


class Encoder(TextEncoder):
    """Tokens without positions, and the blocks."""

    marks_single_texts = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.heads.model_width
        self.segment_types = SEGMENT_TYPES
        self.clamp = config.clamp
        self.tokens = nn.Embedding(config.vocabulary_size, self.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        assert segments is not None
        distances = self.distances(token_ids.shape[1])
        differ = segments[:, :, None] != segments[:, None]
        x = self.tokens(token_ids)
        for block in self.blocks:
            x = block(x, lengths, distances, differ)
        return x

    def distances(self, size: int) -> Tensor:
        """(2·T - 1, D): sines, then cosines, of T - 1 … -(T - 1)."""
        apart = torch.arange(size - 1, -size, -1).float()
        if self.clamp:
            apart = apart.clamp(-self.clamp, self.clamp)
        frequencies = 1 / 10000 ** (torch.arange(0, self.width, 2).float() / self.width)
        angles = apart[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    encoder = Encoder(config)

    def no_vocabulary() -> nn.Module:
        raise AssertionError("the family has no head for masked words")

    return TextModel(
        encoder,
        config.head,
        masked=no_vocabulary,
        classifier=lambda classes: SequenceClassifier(
            encoder.width, classes, config.summary_activation, SUMMARIES[config.summary]
        ),
    )


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; projections are stored by heads, (D, H, K)."""
    theirs, ours = "layer.*", "encoder.blocks.*"
    names = {"q": "query", "k": "key", "v": "value", "r": "position_key"}
    encoder: dict[str, Entry] = {
        "word_embedding": "encoder.tokens",
        "mask_emb": None,
        **{
            f"{theirs}.rel_attn.{name}": WeightLayout(
                (f"{ours}.attention.{own}.weight",), is_transposed=True, is_flattened=True
            )
            for name, own in names.items()
        },
        f"{theirs}.rel_attn.o": WeightLayout((f"{ours}.attention.out.weight",), is_flattened=True),
        f"{theirs}.rel_attn.r_w_bias": f"{ours}.attention.content_bias",
        f"{theirs}.rel_attn.r_r_bias": f"{ours}.attention.position_bias",
        f"{theirs}.rel_attn.r_s_bias": f"{ours}.attention.segment_bias",
        f"{theirs}.rel_attn.seg_embed": f"{ours}.attention.segments",
        f"{theirs}.rel_attn.layer_norm": f"{ours}.attention_norm",
        f"{theirs}.ff.layer_1": f"{ours}.mlp.up",
        f"{theirs}.ff.layer_2": f"{ours}.mlp.down",
        f"{theirs}.ff.layer_norm": f"{ours}.mlp_norm",
    }
    head = class_names(config.head, "logits_proj", "sequence_summary.summary")
    return Rename(with_and_without("transformer.", encoder) | {"lm_loss": None} | head)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("xlnet", read_config, build, rename)
