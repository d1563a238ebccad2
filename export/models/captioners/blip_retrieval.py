"""BLIP's matching head: whether a text describes an image, and vectors of either in one space.

Paper: Li et al. 2022, "BLIP", §3.1, the unimodal encoder and the image-grounded text encoder (arXiv
2201.12086): the text's encoder is one network, whose blocks attend to the image's vectors or skip
that.
Checkpoints: `model_type: blip` of `BlipForImageTextRetrieval` (`Salesforce/blip-itm-*`).

Legend: B batch, N patches, T text positions, D width of the text, E width of the common space.

Differences from `transformers`: pixels come as uint8 and are normalised in the graph; texts are
given with their lengths; what `use_itm_head` chooses are graphs of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Graphs, LimitedByText, lower_stateless
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_ATTENTION, Names, bert_block, projections
from export.layers.images.vision import pixels_port, prepare_tower
from export.layers.qformer import QueryBlock, ReaderConfig
from export.models.encoders import bert
from export.models.vision import vit
from export.text_encoders.declaration import TEXTS
from export.text_encoders.heads import HeadConfig, HeadKind
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port

LABELS = ("no match", "match")
_BARE = HeadConfig(HeadKind.BARE)

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class TextConfig(bert.Config, ReaderConfig):
    """The text's encoder, every block of which can read the image."""

    supported = {"is_decoder": True}
    """As its file has it, although it reads in both directions."""
    segment_types: int = 0


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both encoders and the common space."""

    encoder: vit.Config
    text: TextConfig
    embedding_width: int = key("image_text_hidden_size", 256)


def read_config(reader: ConfigReader, image: vit.Config, text: ConfigReader) -> Config:
    """The configuration; what we lack is refused."""
    read = text.read(TextConfig, head=_BARE, segment_types=0, image_width=image.width)
    return reader.read(Config, encoder=image, text=read)


# --------------------------------------------------------------------------------------- network


class TextEncoder(bert.Encoder):
    """Alone BERT's, (B, T) → (B, T, D); with an image a network that attends to it, too."""

    def make_blocks(self, config: bert.Config) -> nn.ModuleList:
        """The blocks, norms behind."""
        assert isinstance(config, TextConfig)
        return nn.ModuleList(QueryBlock(config, reads_image=True) for _ in range(config.layers))

    def read(self, token_ids: Tensor, lengths: Tensor, patches: Tensor) -> Tensor:
        """(B, T) right-padded, (B,), (B, 1 + N, …) → (B, T, D)."""
        x = self.embed(token_ids, None)
        for block in self.blocks:
            assert isinstance(block, QueryBlock)
            x = block.read(x, patches, lengths)
        return x


class Retrieval(nn.Module):
    """Both encoders and their heads."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = vit.ViT(config.encoder)
        self.text = TextEncoder(config.text)
        self.head = nn.Linear(config.text.width, len(LABELS))
        self.image_projection = nn.Linear(config.encoder.width, config.embedding_width)
        self.text_projection = nn.Linear(config.text.width, config.embedding_width)


class _Part(nn.Module):
    def __init__(self, network: Retrieval) -> None:
        super().__init__()
        self.network = network


class Pair(_Part):
    """Image and text → logits of `LABELS`."""

    def forward(self, pixels: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, (B, T) right-padded, (B,) → (B, 2)."""
        patches = self.network.encoder(pixels)
        return self.network.head(self.network.text.read(token_ids, lengths, patches)[:, 0])


class ImageVector(_Part):
    """Image → a vector."""

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, E), of length one."""
        first = self.network.encoder.first(pixels).squeeze(1)
        return functional.normalize(self.network.image_projection(first), dim=-1)


class TextVector(_Part):
    """Text → a vector."""

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) right-padded, (B,) → (B, E), of length one."""
        first = self.network.text.first(token_ids, lengths).squeeze(1)
        return functional.normalize(self.network.text_projection(first), dim=-1)


# ----------------------------------------------------------------------------------------- names

_BLOCK, _OWN = "text_encoder.encoder.layer.*", "text.blocks.*"
_CROSS = f"{_BLOCK}.crossattention"
NAMES: Names = {
    "text_encoder.embeddings.word_embeddings": "text.tokens",
    "text_encoder.embeddings.position_embeddings": "text.positions",
    "text_encoder.embeddings.LayerNorm": "text.norm",
    "text_encoder.embeddings.position_ids": None,
    **bert_block(_BLOCK, _OWN),
    **projections(_CROSS, f"{_OWN}.cross", BERT_ATTENTION),
    f"{_CROSS}.output.LayerNorm": f"{_OWN}.cross_norm",
    "itm_head": "head",
    "vision_proj": "image_projection",
    "text_proj": "text_projection",
}


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Retrieval, image: ImageSpec | None) -> Graphs:
    """A graph for pairs, and one for each side's vectors (B, and T, dynamic)."""
    image = prepare_tower(model.encoder, image, model.encoder.config.image)
    pixels, width = (pixels_port(image),), model.text_projection.out_features
    embedding = Port(name="embedding", dtype="float32", shape=("B", width), role=Role.EMBEDDING)
    logits = Port(name="logits", dtype="float32", shape=("B", len(LABELS)), role=Role.LOGITS)
    lowerings = {
        "pair": lower_stateless(Pair(model), (*pixels, *TEXTS), logits),
        "image": lower_stateless(ImageVector(model), pixels, embedding),
        "text": lower_stateless(TextVector(model), TEXTS, embedding),
    }
    return Graphs(
        lowerings,
        parts={"pair": "", "image": "-image", "text": "-text"},
        source_vocabulary=model.text.tokens.num_embeddings,
    )


def classify_section(model: Any, checkpoint: object) -> dict[str, Any]:
    """The two classes."""
    return {"labels": LABELS, "activation": "softmax"}
