"""RoBERTa and its siblings of many languages and of French: BERT, trained longer on more text.

Papers: Liu et al. 2019, "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (arXiv
1907.11692); Conneau et al. 2019, "XLM-R" (arXiv 1911.02116); Martin et al. 2019, "CamemBERT" (arXiv
1911.03894).
Checkpoints: `model_type: roberta`, `xlm-roberta` and `camembert`.

Legend: B batch, T positions, D width.

Differences from BERT: positions are counted from behind the padding token's id, as fairseq does,
and padding tokens are not counted; the heads' hidden layers have activations of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, with_and_without
from export.layers.blocks import BASE
from export.models.encoders import bert
from export.text_encoders.declaration import class_names, masked_names, text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextModel, with_heads
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config

CLASSES = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
"""Model type → prefix of its classes in `transformers`."""
HEADS = (HeadKind.BARE, HeadKind.MASKED, HeadKind.SEQUENCE, HeadKind.TOKENS, HeadKind.ANSWER)


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """BERT's, and the token that is not counted."""

    pad_token: int = key("pad_token_id", 1, "index")

    @property
    def limits(self) -> Limits:
        """The position table without its first rows, which no token has."""
        return Limits(max_input_tokens=self.positions - self.pad_token - 1)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    family = CLASSES[ConfigReader(values).text("model_type", "roberta")]
    vocabulary = {"vocab_size": 50265} if family == "Roberta" else {}
    reader = ConfigReader(values, defaults=BASE | vocabulary)
    return reader.read(Config, head=read_head(reader, family, HEADS))


# --------------------------------------------------------------------------------------- network


class Encoder(bert.Encoder):
    """BERT's encoder with positions of its own."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pad_token = config.pad_token

    def position_vectors(self, token_ids: Tensor) -> Tensor:
        """(B, T) → (B, T, D)."""
        return self.positions(count_positions(token_ids, self.pad_token))


def count_positions(token_ids: Tensor, pad_token: int) -> Tensor:
    """(B, T) → (B, T): tokens counted from `pad_token` + 1; padding tokens are at `pad_token`."""
    counted = (token_ids != pad_token).long()
    return counted.cumsum(dim=1) * counted + pad_token


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    return add_heads(Encoder(config), config)


def add_heads(encoder: bert.Encoder, config: bert.Config) -> TextModel:
    """Heads whose hidden layers have a GELU (masked words) and a tanh (classes)."""
    return with_heads(encoder, config, "tanh", masked_activation="gelu")


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; the pooler is no part of any head."""
    encoder: Names = {**bert.encoder_names(), "pooler.dense": None}
    return Rename(with_and_without("roberta.", encoder) | head_names(config.head))


def head_names(head: HeadConfig) -> Names:
    """The heads' table."""
    table = masked_names(head, "lm_head", dense="dense", norm="layer_norm")
    return table | class_names(head, "classifier.out_proj", dense="classifier.dense")


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("roberta", read_config, build, rename)
