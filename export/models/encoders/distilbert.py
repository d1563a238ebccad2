"""DistilBERT: BERT with half of the layers, without segments and pooler, trained to imitate it.

Paper: Sanh et al. 2019, "DistilBERT, a distilled version of BERT", §3 (arXiv 1910.01108).
Checkpoints: `model_type: distilbert`.

Differences from `transformers`: as of BERT (`bert.py`), whose encoder this is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, projections, with_and_without
from export.layers.blocks import BASE
from export.models.encoders.bert import EMBEDDINGS, Config, Encoder
from export.text_encoders.declaration import class_names, text_architecture
from export.text_encoders.heads import HeadKind, read_head
from export.text_encoders.network import TextModel, with_heads

# ---------------------------------------------------------------------------------------- config

HEADS = (HeadKind.BARE, HeadKind.MASKED, HeadKind.SEQUENCE, HeadKind.TOKENS, HeadKind.ANSWER)
NORM_EPSILON = 1e-12
NAMES = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
}


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; sinusoidal positions need no mention, the file contains their table."""
    reader = ConfigReader(values, defaults=BASE | {"num_hidden_layers": 6}, names=NAMES)
    head = read_head(reader, "DistilBert", HEADS)
    return reader.read(Config, segment_types=0, norm_epsilon=NORM_EPSILON, head=head)


# --------------------------------------------------------------------------------------- network


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    return with_heads(Encoder(config), config, "relu")


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "transformer.layer.*", "encoder.blocks.*"
    encoder: Names = {
        **EMBEDDINGS,
        **projections(f"{theirs}.attention", f"{ours}.attention", "q_lin k_lin v_lin out_lin"),
        f"{theirs}.sa_layer_norm": f"{ours}.attention_norm",
        f"{theirs}.ffn.lin1": f"{ours}.mlp.up",
        f"{theirs}.ffn.lin2": f"{ours}.mlp.down",
        f"{theirs}.output_layer_norm": f"{ours}.mlp_norm",
    }
    masked = config.head.fills_masks
    heads: Names = {
        "vocab_transform": "masked.dense" if masked else None,
        "vocab_layer_norm": "masked.norm" if masked else None,
        "vocab_projector": "masked.output" if masked else None,
        **class_names(config.head, dense="pre_classifier"),
    }
    return Rename(with_and_without("distilbert.", encoder) | heads)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("distilbert", read_config, build, rename)
