"""ELECTRA: BERT's network, pre-trained to find replaced words, with embeddings of another width.

Paper: Clark et al. 2020, "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than
Generators", §2, §3.2 (arXiv 2003.10555).
Checkpoints: `model_type: electra`: bare (the discriminator), the generator of masked words,
classifiers, taggers.

Legend: B batch, T positions, E width of the embeddings, D width of the layers.

Differences from `transformers`: as of BERT (`bert.py`). The discriminator's own head, which marks
replaced words, is for pre-training and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, with_and_without
from export.layers.blocks import BASE
from export.models.encoders import bert
from export.text_encoders.declaration import class_names, text_architecture
from export.text_encoders.heads import HeadKind, read_head
from export.text_encoders.network import TextModel, with_heads

# ---------------------------------------------------------------------------------------- config

HEADS = (HeadKind.BARE, HeadKind.MASKED, HeadKind.SEQUENCE, HeadKind.TOKENS, HeadKind.ANSWER)
_DEFAULTS = BASE | {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """BERT's, and E."""

    embedding_width: int = key("embedding_size", 128)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=_DEFAULTS)
    return reader.read(Config, head=read_head(reader, "Electra", HEADS))


# --------------------------------------------------------------------------------------- network


class Encoder(bert.Encoder):
    """BERT's encoder; embeddings of another width than the layers are projected."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, table_width=config.embedding_width)
        self.project = (
            nn.Identity()
            if config.embedding_width == config.width
            else nn.Linear(config.embedding_width, config.width)
        )

    def embed(self, token_ids: Tensor, segments: Tensor | None) -> Tensor:
        """(B, T), (B, T) → (B, T, D)."""
        return self.project(super().embed(token_ids, segments))


def build(config: Config) -> TextModel:
    """The encoder with its head; hidden layers of heads have a GELU, whatever the layers have."""
    return with_heads(Encoder(config), config, "gelu", masked_activation="gelu")


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; the discriminator's head is skipped."""
    encoder: Names = {**bert.encoder_names(), "embeddings_project": "encoder.project"}
    masked = config.head.fills_masks
    heads: Names = {
        "discriminator_predictions.dense": None,
        "discriminator_predictions.dense_prediction": None,
        "generator_predictions.dense": "masked.dense" if masked else None,
        "generator_predictions.LayerNorm": "masked.norm" if masked else None,
        "generator_lm_head": "masked.output" if masked else None,
        **class_names(config.head, "classifier.out_proj", dense="classifier.dense"),
    }
    return Rename(with_and_without("electra.", encoder) | heads)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("electra", read_config, build, rename)
