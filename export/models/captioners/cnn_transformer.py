"""Image captioner: a small CNN, whose grid of features is the source of the original Transformer.

Papers: Sharma et al. 2018, "Conceptual Captions", §4 (ACL P18-1238), its model T2T8x8; Vaswani et
al. 2017 (arXiv 1706.03762) for the Transformer, which is `transformer.py`'s.
Checkpoints: `model_type: cnn-transformer`, our own format; `transformers` has no such model.
Tensors have the names of `torch.nn.Transformer` in a module with the attributes `convolutions`,
`projection`, `positions`, `embedding` and `transformer`.

Legend: B images, N grid cells, D model width, V vocabulary.

Differences from the paper: a small CNN with batch normalisation instead of Inception-ResNet-v2;
cells have a learned position, because a cell's features do not hold its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Rename
from export.decoder_graphs.transformer import alignment, encoder_decoder_graphs
from export.layers.blocks import make_encoder_blocks
from export.layers.images.convolutions import ConvolutionalEncoder, Convolutions
from export.models.captioners import captioner_config
from export.models.encoder_decoders import transformer
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    convolutions: Convolutions
    transformer: transformer.Config

    @property
    def limits(self) -> Limits:
        """Prompt and caption together."""
        return Limits(max_total_tokens=self.transformer.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration."""
    return Config(ConfigReader(values).read(Convolutions), transformer.read_config(values))


# --------------------------------------------------------------------------------------- network


class Encoder(ConvolutionalEncoder):
    """Pixels → cells that have read each other."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.convolutions)
        width = config.transformer.width
        self.projection = nn.Linear(self.sizes.width, width)
        self.positions = nn.Parameter(torch.zeros(self.sizes.cells, width))
        self.blocks = make_encoder_blocks(config.transformer, is_norm_first=False)
        self.norm = transformer.make_final_norm(config.transformer)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, or (B, 3, height, width) normalised → (B, N, D)."""
        x = self.projection(self.features(pixels)) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Captioner(nn.Module):
    """Both halves."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        embedding = transformer.Embedding(config.transformer)
        self.decoder = transformer.Decoder(config.transformer, embedding)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """The Transformer's names, with the tokens' table in the decoder alone."""
    return Rename(
        transformer.rename(config.transformer).table
        | {
            "embedding": "decoder.embedding.tokens",
            "convolutions.*.filter": "encoder.convolutions.*.filter",
            "convolutions.*.norm": "encoder.convolutions.*.norm",
            "projection": "encoder.projection",
            "positions": "encoder.positions",
        }
    )


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Captioner, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic), `step` (R, T, P, B dynamic; in place) and `align` (T dynamic)."""
    source = captioner_config.prepare_source(model, image)
    return encoder_decoder_graphs(model.encoder, model.decoder, source)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="cnn-transformer",
    tasks={"caption": no_section},
    read_config=read_config,
    build=Captioner,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.convolutions.image,
    details=lambda network: alignment(network.decoder, network.config.convolutions.grid),
)
