"""LXMERT: a text and a picture's regions, encoded apart and then by attention to each other.

Paper: Tan and Bansal 2019, "LXMERT: Learning Cross-Modality Encoder Representations from
Transformers", §2 (arXiv 1908.07490).
Checkpoints: `model_type: lxmert` of `LxmertForQuestionAnswering` (`unc-nlp/lxmert-vqa-uncased`,
`unc-nlp/lxmert-gqa-uncased`), and a detector's regions beside each picture.

Legend: B batch, T text positions, R regions, F features of a region, C classes, D width.

Differences from `transformers`: features and boxes are one input; pictures of one call have equally
many regions, so that there is no mask of them; texts are given with their lengths. The answer
depends on the text's first vector, so that the last layer computes it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.checkpoint.labels import labels
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import (
    BERT_ATTENTION,
    Names,
    Rename,
    bert_block,
    projections,
)
from export.layers.attention.attention import Attention
from export.layers.blocks import BASE, EncoderBlock, make_encoder_blocks
from export.layers.images.vision import pixels_port
from export.models.encoders import bert
from export.models.vision_language.vilt import classify_section, pair_graphs
from export.text_encoders.heads import HeadConfig, HeadKind
from export.text_encoders.image_graphs import head_of
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
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another head, or values that we lack.
    """
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


def region_recipe(features: int, *, has_boxes: bool) -> ImageSpec:
    """The recipe of a model that reads regions."""
    return ImageSpec(
        resize="regions",
        size=(USUAL_REGIONS, 1),
        resample=0,
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        rescale=1.0,
        regions=Regions(features=features, has_boxes=has_boxes),
    )


# --------------------------------------------------------------------------------------- network


class CrossLayer(nn.Module):
    """Each side attends to the other, by one attention, and then to itself."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.cross = Attention(config.heads)
        self.cross_norm = nn.LayerNorm(config.width, eps=_EPSILON)
        self.text, self.regions = make_encoder_blocks(
            replace(config, layers=2), is_norm_first=False
        )

    def forward(self, text: Tensor, regions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, D) right-padded, (B, R, D), (B,) → both sides."""
        read, seen = self.read(text, regions), self.read(regions, text, lengths)
        return self.text(read, lengths), self.regions(seen)

    def first(self, text: Tensor, regions: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D) right-padded, (B, R, D), (B,) → (B, 1, D): the text's first position."""
        assert isinstance(self.text, EncoderBlock)
        return self.text.first(self.read(text, regions), lengths)

    def read(self, x: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, …, D): one side, with what it reads of the other.

        Args:
            lengths: (B,), of the source, where it is padded.
        """
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
        last = self.layers[-1]
        assert isinstance(last, CrossLayer)
        return self.head(self.pooler(last.first(text, regions, lengths).squeeze(1)).tanh())

    def embed_regions(self, pixels: Tensor) -> Tensor:
        """(B, R, 1, F + 4) → (B, R, D): the mean of what features and boxes become."""
        features, boxes = pixels.squeeze(2).split([self.features, _BOX], dim=-1)
        features = self.feature_norm(self.feature_projection(features))
        return (features + self.box_norm(self.box_projection(boxes))) / 2


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
