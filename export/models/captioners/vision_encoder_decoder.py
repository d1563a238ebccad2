"""Image captioner or text recogniser: an image encoder whose vectors a text decoder attends to.

Papers: Li et al. 2021, "TrOCR", §2 (arXiv 2109.10282), the pairing of a pre-trained image encoder
and text decoder; Kim et al. 2022, "Donut", §3 (arXiv 2111.15664), of Swin and mBART. The halves are
in `halves.py`.
Checkpoints: `model_type: vision-encoder-decoder` with the encoders and decoders of `halves.py`.

Differences from `transformers`: cross-attention keys and values are computed once, by `admit`;
pixels come as uint8 and are normalised in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from export.architecture import Architecture, Graphs, no_section
from export.config.config_reader import ConfigReader
from export.decoder_graphs.source import image_source
from export.decoder_graphs.transformer import alignment, encoder_decoder_graphs
from export.layers.images.vision import prepare_tower
from export.models.captioners import bart_decoder
from export.models.encoder_decoders.halves import (
    TEXT_DECODERS,
    EncoderDecoder,
    Half,
    Halves,
    find_half,
    rename,
)
from export.models.vision import swin, vit
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits

ENCODERS: Mapping[str, Half] = {
    "vit": Half(vit.read_config, vit.ViT, lambda _, theirs, ours: vit.rename(theirs, ours)),
    "deit": Half(
        partial(vit.read_config, form=vit.DeiTConfig),
        vit.DeiT,
        lambda _, theirs, ours: vit.rename(theirs, ours, vit.DEIT_NAMES),
    ),
    "swin": Half(
        swin.read_network_config,
        swin.Swin,
        lambda _, theirs, ours: swin.rename_network(theirs, ours),
    ),
    "donut-swin": Half(
        swin.read_document_config,
        swin.Swin,
        lambda _, theirs, ours: swin.rename_network(theirs, ours),
    ),
}
DECODERS: Mapping[str, Half] = {
    **TEXT_DECODERS,
    "trocr": Half(
        bart_decoder.read_trocr,
        bart_decoder.BartDecoder,
        partial(bart_decoder.rename, output="output_projection.weight"),
    ),
    "mbart": Half(bart_decoder.read_mbart, bart_decoder.BartDecoder, bart_decoder.rename),
}


# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config(Halves):
    """Both halves.

    Attributes:
        encoder: Has `image` (height, width), `grid` (rows and columns of its patches), and
            `positions` (S; the vectors of the grid are the last ones), too.
    """

    reads_encoder_width: bool
    """Whether cross-attention itself takes vectors of the encoder's width."""

    @property
    def limits(self) -> Limits:
        """The decoder's position table bounds prompt and caption together."""
        return Limits(max_total_tokens=self.decoder.positions)

    @property
    def has_projection(self) -> bool:
        return not self.reads_encoder_width and super().has_projection


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; other encoders or decoders are refused by name."""
    reader = ConfigReader(values)
    encoder, decoder = reader.section("encoder"), reader.section("decoder")
    encoder_half, decoder_half = find_half(encoder, ENCODERS), find_half(decoder, DECODERS)
    config = Config(
        encoder_half.read_config(encoder),
        decoder_half.read_config(decoder),
        encoder_half,
        decoder_half,
        decoder.values.get("cross_attention_hidden_size") is not None,
    )
    if config.reads_encoder_width:
        decoder.refuse_unless(cross_attention_hidden_size=config.encoder.width)
    return config


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: EncoderDecoder, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic), `step` (R, T, P, B dynamic; in place) and `align` (T dynamic)."""
    image = prepare_tower(model.encoder.network, image, model.config.encoder.image)
    source = image_source(image, model.config.encoder.positions)
    return encoder_decoder_graphs(model.encoder, model.decoder, source)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="vision-encoder-decoder",
    tasks={"caption": no_section},
    read_config=read_config,
    build=EncoderDecoder,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.encoder.image,
    details=lambda network: alignment(network.decoder, network.config.encoder.grid),
)
