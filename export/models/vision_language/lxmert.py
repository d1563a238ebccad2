"""LXMERT and VisualBERT: a text and the regions of a picture, which a detector found.

Papers: Tan and Bansal 2019, "LXMERT: Learning Cross-Modality Encoder Representations from
Transformers", §2 (arXiv 1908.07490); Li et al. 2019, "VisualBERT: A Simple and Performant Baseline
for Vision and Language", §3 (arXiv 1908.03557).
Checkpoints: `model_type: lxmert`, class `LxmertForQuestionAnswering` (`unc-nlp/lxmert-vqa-uncased`,
`unc-nlp/lxmert-gqa-uncased`); `visual_bert`, classes `VisualBertForQuestionAnswering`
(`uclanlp/visualbert-vqa`) and `VisualBertForVisualReasoning` (`uclanlp/visualbert-nlvr2`: a file
has the regions of both pictures, which `transformers` gives one type; the paper has two, §4.3).

Legend: B batch, T text positions, R regions, F features of a region, C classes, D width.

Differences from `transformers`: features and boxes are one input; pictures of one call have equally
many regions, so that there is no mask of them; texts are given with their lengths. The last layer
computes the one vector that is read: of LXMERT the text's first one; of VisualBERT's answers that
of the last token but one, in front of `[SEP]`: `transformers` gathers at the sum of the text's mask
less 2, whatever the padding and the regions; without a mask it raises. A text of one token, where
it raises too, is read at that one. VisualBERT's regions come first, which attention does not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.checkpoint.labels import labels
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_ATTENTION, Names, Rename, bert_block, projections
from export.layers.attention.attention import Attention
from export.layers.blocks import BASE, make_encoder_blocks
from export.layers.images.vision import pixels_port
from export.models.encoders import bert
from export.models.vision_language.vilt import classify_section, pair_graphs
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.image_graphs import Head, head_of
from inference.bundle.inputs import ImageSpec, Regions

# ---------------------------------------------------------------------------------------- config

ANSWERS, USUAL_REGIONS = 9500, 36
_BOX, _EPSILON = 4, 1e-12


@dataclass(frozen=True, kw_only=True)
class Config(bert.Config):
    """The network and its answers; `layers` are the text's."""

    supported = bert.Config.supported | {"visual_pos_dim": _BOX}
    region_layers: int = key("r_layers", 5, "layers")
    cross_layers: int = key("x_layers", 5, "layers")
    features: int = key("visual_feat_dim", 2048)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own. `CheckpointError`: what we lack."""
    reader = ConfigReader(values, defaults=BASE)
    head_of(values, {"LxmertForQuestionAnswering": "classify"})
    # the two names that every file has stand for no answers
    count, names = reader.integer("num_qa_labels", ANSWERS), values.get("id2label")
    if names is None or (isinstance(names, Mapping) and len(names) != count):
        values = {"num_labels": count}
    return reader.read(
        Config,
        layers=reader.layers("l_layers", 9),
        norm_epsilon=_EPSILON,
        # the loss of the class in `transformers` is a cross-entropy
        head=HeadConfig(HeadKind.SEQUENCE, labels(values), activation="softmax"),
    )


QUESTION, REASONING = "VisualBertForQuestionAnswering", "VisualBertForVisualReasoning"
HEADS: Mapping[str, Head] = {QUESTION: "classify", REASONING: "classify"}


@dataclass(frozen=True, kw_only=True)
class VisualBertConfig(bert.Config):
    """The network and its classes."""

    supported = bert.Config.supported | {"bypass_transformer": False}
    segment_types: int = key("type_vocab_size", 2, least=2)
    features: int = key("visual_embedding_dim", 512)
    is_pooled: bool
    """Whether the first token's vector is classified, behind a layer of its own."""


def read_visual_bert(values: Mapping[str, Any]) -> VisualBertConfig:
    """The configuration; defaults are `transformers`' own. Raises as `read_config`."""
    name, _ = head_of(values, HEADS)
    # the losses of both classes in `transformers` are of a softmax: KL divergence, cross-entropy
    head = HeadConfig(HeadKind.SEQUENCE, labels(values), activation="softmax")
    reader = ConfigReader(values, defaults=BASE)
    return reader.read(VisualBertConfig, head=head, is_pooled=name == REASONING)


def region_recipe(features: int, *, has_boxes: bool) -> ImageSpec:
    """The recipe of a model that reads regions."""
    unused: dict[str, Any] = {"resample": 0, "mean": (0, 0, 0), "std": (1, 1, 1), "rescale": 1}
    regions = Regions(features=features, has_boxes=has_boxes)
    return ImageSpec(resize="regions", size=(USUAL_REGIONS, 1), regions=regions, **unused)


# --------------------------------------------------------------------------------------- network


class CrossLayer(nn.Module):
    """Each side attends to the other, by one attention, and then to itself."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.cross = Attention(config.heads)
        self.cross_norm = nn.LayerNorm(config.width, eps=_EPSILON)
        self.text: Any
        self.text, self.regions = make_encoder_blocks(
            replace(config, layers=2), is_norm_first=False
        )

    def forward(self, text: Tensor, regions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) right-padded, (B, R, D), (B,) → both sides."""
        read, seen = self.read(text, regions), self.read(regions, text, lengths)
        return self.text(read, lengths), self.regions(seen)

    def first(self, text: Tensor, regions: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D) right-padded, (B, R, D), (B,) → (B, 1, D): the text's first position."""
        return self.text.first(self.read(text, regions), lengths)

    def read(self, x: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, …, D): one side, with what it reads of the other, whose padding `lengths` hide."""
        cross = self.cross
        mixed = cross.mix(cross.query(x), cross.key(source), cross.value(source), lengths)
        return self.cross_norm(x + cross.out(mixed))


class Lxmert(nn.Module):
    """Regions and text → logits of answers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, answers = config.width, len(config.head.labels)
        self.head_config = config.head
        self.features = config.features
        self.text = bert.Encoder(config)
        self.feature_projection = nn.Linear(config.features, width)
        self.feature_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.box_projection = nn.Linear(_BOX, width)
        self.box_norm = nn.LayerNorm(width, eps=_EPSILON)
        self.regions = make_encoder_blocks(
            replace(config, layers=config.region_layers), is_norm_first=False
        )
        self.layers = nn.ModuleList(CrossLayer(config) for _ in range(config.cross_layers))
        del self.layers[-1].regions  # which no answer depends on
        self.pooler = nn.Linear(width, width)
        inner = nn.Linear(width, 2 * width), nn.GELU(), nn.LayerNorm(2 * width, eps=_EPSILON)
        self.head = nn.Sequential(*inner, nn.Linear(2 * width, answers))

    def forward(self, pixels: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, R, 1, F + 4), (B, T) right-padded, (B,) → (B, C)."""
        text, regions = self.text(token_ids, lengths), self.embed_regions(pixels)
        for block in self.regions:
            regions = block(regions)
        for layer in self.layers[:-1]:
            text, regions = layer(text, regions, lengths)
        last: Any = self.layers[-1]
        return self.head(self.pooler(last.first(text, regions, lengths).squeeze(1)).tanh())

    def embed_regions(self, pixels: Tensor) -> Tensor:
        """(B, R, 1, F + 4) → (B, R, D): the mean of what features and boxes become."""
        features, boxes = pixels.squeeze(2).split([self.features, _BOX], dim=-1)
        features = self.feature_norm(self.feature_projection(features))
        return (features + self.box_norm(self.box_projection(boxes))) / 2


class VisualBert(nn.Module):
    """Regions and text → logits of classes."""

    def __init__(self, config: VisualBertConfig) -> None:
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
        last: Any = self.blocks[-1]
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

_LAYER, _OWN = "encoder.x_layers.*", "layers.*"


def _side(theirs: str) -> str:
    """Names of a side's block within a layer, in the order of `bert_block`."""
    attention, inner, output = f"{theirs}_self_att", f"{theirs}_inter", f"{theirs}_output"
    own = [f"{attention}.{name}" for name in (*BERT_ATTENTION.split(), "output.LayerNorm")]
    return " ".join([*own, f"{inner}.dense", f"{output}.dense", f"{output}.LayerNorm"])


NAMES: Names = {
    **bert.embedding_names("embeddings", "text"),
    **bert_block("encoder.layer.*", "text.blocks.*"),
    **bert_block("encoder.r_layers.*", "regions.*"),
    **bert_block(_LAYER, f"{_OWN}.text", _side("lang")),
    **bert_block(_LAYER, f"{_OWN}.regions", _side("visn")),
    **projections(
        f"{_LAYER}.visual_attention", f"{_OWN}.cross", "att.query att.key att.value output.dense"
    ),
    f"{_LAYER}.visual_attention.output.LayerNorm": f"{_OWN}.cross_norm",
    "encoder.visn_fc.visn_fc": "feature_projection",
    "encoder.visn_fc.visn_layer_norm": "feature_norm",
    "encoder.visn_fc.box_fc": "box_projection",
    "encoder.visn_fc.box_layer_norm": "box_norm",
    "pooler.dense": "pooler",
}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    heads = {f"answer_head.logit_fc.{n}": f"head.{n}" for n in (0, 2, 3)}
    last = f"encoder.x_layers.{config.cross_layers - 1}"
    names = NAMES | dict.fromkeys(bert_block(last, "", _side("visn")))
    return Rename(Rename(names).prefixed("lxmert.", "") | heads)


VISUAL_BERT_NAMES: Names = {
    **bert.embedding_names("embeddings", "text"),
    **bert_block("encoder.layer.*", "blocks.*"),
    "embeddings.visual_projection": "projection",
    "embeddings.visual_position_embeddings": "region_positions",
    "embeddings.visual_token_type_embeddings": "region_types",
}


def rename_visual_bert(config: VisualBertConfig) -> Rename:
    """`transformers`' names → ours."""
    names = VISUAL_BERT_NAMES | {"pooler.dense": "pooler" if config.is_pooled else None}
    return Rename(Rename(names).prefixed("visual_bert.", "") | {"cls": "head"})


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: nn.Module, image: ImageSpec | None) -> Graphs:
    """One graph (B, R and T dynamic)."""
    assert image is not None
    return pair_graphs(model, pixels_port(image), {"height": 5})


ARCHITECTURE = Architecture(
    name="lxmert",
    tasks={"classify": classify_section},
    read_config=read_config,
    build=Lxmert,
    rename=rename,
    graphs=graphs,
    image_recipe=lambda config: region_recipe(config.features, has_boxes=True),
)
VISUAL_BERT = Architecture(
    name="visual_bert",
    tasks={"classify": classify_section},
    read_config=read_visual_bert,
    build=VisualBert,
    rename=rename_visual_bert,
    graphs=graphs,
    image_recipe=lambda config: region_recipe(config.features, has_boxes=False),
)
