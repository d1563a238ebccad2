"""Image captioner: a ViT whose patch vectors a GPT-2 attends to.

Paper: Li et al. 2021, "TrOCR", §2 (arXiv 2109.10282), the pairing of a pre-trained image encoder
and text decoder; its blocks are in `vit.py` and `gpt2.py`.
Checkpoints: `model_type: vision-encoder-decoder` with `vit` and `gpt2` inside.

Legend: B batch, N patches, D decoder width.

Differences from `transformers`: cross-attention keys and values are computed once, by `admit`;
pixels come as uint8 and are normalised in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, Fields, Graphs, no_section
from export.decoding import (
    align_lowering,
    alignment_layer,
    image_admit_lowering,
    states,
    step_lowering,
)
from export.models import gpt2, vit
from export.rename import Entry, Rename
from serving.bundle import AlignmentSpec, ImageSpec, Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """Both halves."""

    encoder: vit.Config
    decoder: gpt2.Config

    @property
    def limits(self) -> Limits:
        """The decoder's position table bounds prompt and caption together."""
        return Limits(max_total_tokens=self.decoder.positions)

    @property
    def has_projection(self) -> bool:
        """Whether image vectors must be brought to the decoder's width."""
        return self.encoder.width != self.decoder.width


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; other encoders or decoders are refused by name."""
    fields = Fields(values)
    return Config(
        vit.read_config(fields.section("encoder")),
        gpt2.read_config(fields.section("decoder"), has_cross=True),
    )


# --------------------------------------------------------------------------------------- network


class Tower(nn.Module):
    """Pixels → vectors that the decoder can attend to."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = vit.ViT(config.encoder)
        self.projection: nn.Module = nn.Identity()
        if config.has_projection:
            self.projection = nn.Linear(config.encoder.width, config.decoder.width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N + 1, D)."""
        return self.projection(self.vit(pixels))


class Captioner(nn.Module):
    """Image tower and text decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Tower(config)
        self.decoder = gpt2.CrossGPT2(config.decoder)


# ---------------------------------------------------------------------------------------- rename


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    table: dict[str, Entry] = vit.rename("encoder.", "encoder.vit.")
    table |= gpt2.rename(config.decoder, "decoder.", "decoder.")
    table["enc_to_dec_proj"] = "encoder.projection"
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Captioner, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic), `step` (R, T, P, B dynamic; in place) and `align` (T dynamic)."""
    assert image is not None
    model.encoder.vit.prepare(image)
    encoder, decoder, positions = model.encoder, model.decoder, model.config.encoder.positions
    admit = image_admit_lowering(encoder, decoder, image.shape, positions)
    lowerings = {
        "admit": admit,
        "step": step_lowering(decoder, positions),
        "align": align_lowering(encoder, decoder, admit.graph, alignment_layer(decoder.layers)),
    }
    return Graphs(lowerings, states(decoder, positions))


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="vision-encoder-decoder",
    tasks={"caption": no_section},
    read_config=read_config,
    build=Captioner,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    has_image=True,
    details=lambda network: {
        "alignment": AlignmentSpec(
            over="patches",
            grid=network.config.encoder.grid,
            layer=alignment_layer(network.decoder.layers),
        )
    },
)
