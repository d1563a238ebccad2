"""ALBERT: BERT with a narrow embedding table and layers that share their weights.

Paper: Lan et al. 2019, "ALBERT: A Lite BERT for Self-supervised Learning of Language
Representations", §3.1 (arXiv 1909.11942).
Checkpoints: `model_type: albert`.

Legend: B batch, T positions, E width of the embeddings, D width of the layers.

Differences from `transformers`: as of BERT (`bert.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, projections, with_and_without
from export.layers.blocks import make_encoder_blocks
from export.models.encoders import bert
from export.text_encoders.declaration import class_names, masked_names, text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextModel, with_heads

# ---------------------------------------------------------------------------------------- config

HEADS = tuple(kind for kind in HeadKind if kind is not HeadKind.NEXT_SENTENCE)
ORDER_LABELS = ("in_order", "swapped")
"""Of two sentences (§3.1, "sentence-order prediction")."""
_DEFAULTS = {
    "vocab_size": 30000,
    "num_hidden_layers": 12,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "hidden_act": "gelu_new",
}


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """BERT's, the embeddings' width, and how the layers share weights."""

    embedding_width: int = key("embedding_size", 128)
    groups: int = key("num_hidden_groups", 1)
    """Sets of weights; each serves an equal share of the layers."""
    blocks_per_layer: int = key("inner_group_num", 1)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=_DEFAULTS)
    head = read_head(reader, "Albert", HEADS, relation=ORDER_LABELS)
    return reader.read(Config, head=head)


# --------------------------------------------------------------------------------------- network


class Encoder(bert.Embeddings):
    """Embeddings of width E, widened to D, and the layers."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.embedding_width)
        self.layers = config.layers
        self.widen = nn.Linear(config.embedding_width, config.width)
        group = replace(config, layers=config.blocks_per_layer)
        self.groups = nn.ModuleList(
            make_encoder_blocks(group, is_norm_first=False) for _ in range(config.groups)
        )

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,), (B, T) → (B, T, D)."""
        x = self.widen(self.embed(token_ids, segments))
        for layer in range(self.layers):
            for block in self.group(layer):
                x = block(x, lengths)
        return x

    def group(self, layer: int) -> nn.ModuleList:
        """The blocks of one layer, which further layers use too; rounded as `transformers` does."""
        group = self.groups[int(layer / (self.layers / len(self.groups)))]
        assert isinstance(group, nn.ModuleList)
        return group


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    return with_heads(Encoder(config), config, "tanh")


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs = "encoder.albert_layer_groups.*.albert_layers.*"
    ours = "encoder.groups.*.*"
    encoder: Names = {
        **bert.EMBEDDINGS,
        "embeddings.token_type_embeddings": "encoder.segments",
        "encoder.embedding_hidden_mapping_in": "encoder.widen",
        **projections(f"{theirs}.attention", f"{ours}.attention", "query key value dense"),
        f"{theirs}.attention.LayerNorm": f"{ours}.attention_norm",
        f"{theirs}.ffn": f"{ours}.mlp.up",
        f"{theirs}.ffn_output": f"{ours}.mlp.down",
        f"{theirs}.full_layer_layer_norm": f"{ours}.mlp_norm",
        "pooler": "classifier.dense" if config.head.classifies else None,
    }
    return Rename(with_and_without("albert.", encoder) | _head_names(config.head))


def _head_names(head: HeadConfig) -> Names:
    table = masked_names(head, "predictions", dense="dense", norm="LayerNorm")
    table["sop_classifier.classifier"] = "classifier.output" if head.relates_sentences else None
    return table | class_names(head)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("albert", read_config, build, rename)
