"""VisualBERT: BERT over a text and a picture's regions.

Paper: Li et al. 2019, "VisualBERT: A Simple and Performant Baseline for Vision and Language", §3
(arXiv 1908.03557).
Checkpoints: `model_type: visual_bert`, classes `VisualBertForQuestionAnswering`
(`uclanlp/visualbert-vqa`) and `VisualBertForVisualReasoning` (`uclanlp/visualbert-nlvr2`: a file
has the regions of both pictures, which `transformers` gives one type; the paper has two, §4.3).

Legend: B batch, T text positions, R regions, F features of a region, C classes, D width.

Differences from `transformers`: pictures of one call have equally many regions, so that there is no
mask of them; texts are given with their lengths. Regions come first, which attention does not see.
An answer is read at the last token but one of the text, the one in front of `[SEP]`: `transformers`
gathers at the sum of the text's mask less 2, whatever the padding and the regions; without a mask
it raises. A text of one token, where it raises too, is read at that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture
from export.checkpoint.labels import labels
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename, bert_block
from export.layers.blocks import BASE, EncoderBlock, make_encoder_blocks
from export.models.encoders import bert
from export.models.vision_language.lxmert import graphs, region_recipe
from export.models.vision_language.vilt import classify_section
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.image_graphs import Head, head_of

# ---------------------------------------------------------------------------------------- config

QUESTION, REASONING = "VisualBertForQuestionAnswering", "VisualBertForVisualReasoning"
HEADS: Mapping[str, Head] = {QUESTION: "classify", REASONING: "classify"}


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The network and its classes."""

    supported = bert.Config.supported | {"bypass_transformer": False}
    segment_types: int = key("type_vocab_size", 2, least=2)
    features: int = key("visual_embedding_dim", 512)
    is_pooled: bool
    """Whether the first token's vector is classified, behind a layer of its own."""


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another head, or values that we lack.
    """
    name, _ = head_of(values, HEADS)
    # the losses of both classes in `transformers` are of a softmax: KL divergence, cross-entropy
    head = HeadConfig(HeadKind.SEQUENCE, labels(values), activation="softmax")
    reader = ConfigReader(values, defaults=BASE)
    return reader.read(Config, head=head, is_pooled=name == REASONING)


# --------------------------------------------------------------------------------------- network


class VisualBert(nn.Module):
    """Regions and text → logits of classes."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.head_config = config.head
        self.text = bert.Encoder(replace(config, layers=0))
        self.projection = nn.Linear(config.features, width)
        self.region_positions = nn.Embedding(config.positions, width)
        self.region_types = nn.Embedding(config.segment_types, width)
        self.blocks = make_encoder_blocks(config, is_norm_first=False)
        self.pooler = nn.Linear(width, width) if config.is_pooled else None
        self.head = nn.Linear(width, len(config.head.labels))

    def forward(self, pixels: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, R, 1, F), (B, T) right-padded, (B,) → (B, C)."""
        regions = self.embed_regions(pixels)
        x = torch.cat([regions, self.text.embed(token_ids, None)], dim=1)
        place = torch.zeros_like(lengths) if self.pooler else (lengths - 2).clamp(min=0)
        lengths, place = lengths + regions.shape[1], place + regions.shape[1]
        for block in self.blocks[:-1]:
            x = block(x, lengths)
        last = self.blocks[-1]
        assert isinstance(last, EncoderBlock)
        read = x.gather(1, place.long()[:, None, None].expand(-1, -1, x.shape[2]))
        attention = last.attention  # at one position, where nothing reads the others
        mixed = attention.mix(attention.query(read), attention.key(x), attention.value(x), lengths)
        read = last.finish(read, attention.out(mixed)).squeeze(1)
        return self.head(self.pooler(read).tanh() if self.pooler else read)

    def embed_regions(self, pixels: Tensor) -> Tensor:
        """(B, R, 1, F) → (B, R, D): all of one type and position."""
        x = self.projection(pixels.squeeze(2)) + self.region_types.weight[1]
        return self.text.norm(x + self.region_positions.weight[0])


# ----------------------------------------------------------------------------------------- names

NAMES: Names = {
    **bert.embedding_names("embeddings", "text"),
    **bert_block("encoder.layer.*", "blocks.*"),
    "embeddings.visual_projection": "projection",
    "embeddings.visual_position_embeddings": "region_positions",
    "embeddings.visual_token_type_embeddings": "region_types",
}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    names = NAMES | {"pooler.dense": "pooler" if config.is_pooled else None}
    return Rename(Rename(names).prefixed("visual_bert.", "") | {"cls": "head"})


ARCHITECTURE = Architecture(
    name="visual_bert",
    tasks={"classify": classify_section},
    read_config=read_config,
    build=VisualBert,
    rename=rename,
    graphs=graphs,
    image_recipe=lambda config: region_recipe(config.features, has_boxes=False),
)
