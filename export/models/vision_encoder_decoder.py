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

from export.architecture import Architecture, Graphs, no_section
from export.config_reader import ConfigReader
from export.decoding.source import image_source
from export.decoding.transformer import alignment_layer, encoder_decoder_graphs
from export.models import gpt2, vit
from export.rename import Entry, Rename
from export.twin import Twin
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
    reader = ConfigReader(values)
    encoder, decoder = reader.section("encoder"), reader.section("decoder")
    encoder.refuse_unless(model_type="vit")
    decoder.refuse_unless(model_type="gpt2")
    return Config(vit.read_config(encoder), gpt2.read_config(decoder, has_cross=True))


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
        self.decoder = gpt2.GPT2(config.decoder, has_cross=True)


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
    source = image_source(image.shape, model.config.encoder.positions)
    return encoder_decoder_graphs(model.encoder, model.decoder, source)


# ------------------------------------------------------------------------------------------ twin

_TINY_VIT = {
    "model_type": "vit",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
}
_TINY_GPT2 = {
    "model_type": "gpt2",
    "is_decoder": True,
    "add_cross_attention": True,
    "vocab_size": 64,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 1,
}


def _tiny(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    halves = {"encoder": {**_TINY_VIT, **encoder}, "decoder": {**_TINY_GPT2, **decoder}}
    return halves | {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 1}


TWIN = Twin(
    reference="transformers:VisionEncoderDecoderModel",
    configs={
        "plain": _tiny({}, {"n_embd": 24}),
        "projected": _tiny({}, {"n_layer": 3, "n_inner": 44, "activation_function": "relu"}),
        "odd": _tiny(  # epsilons that differ from what a careless port would assume
            {"num_attention_heads": 3, "qkv_bias": False, "layer_norm_eps": 1e-3},
            {"n_embd": 30, "n_head": 3, "layer_norm_epsilon": 1e-3},
        ),
        "not-square": _tiny(
            {"image_size": [32, 48], "patch_size": [8, 16], "hidden_act": "quick_gelu"},
            {"scale_attn_weights": False, "layer_norm_epsilon": 1e-3},
        ),
        "untied": _tiny(
            {"num_hidden_layers": 1, "intermediate_size": 20},
            {
                "tie_word_embeddings": False,
                "scale_attn_by_inverse_layer_idx": True,
                "reorder_and_upcast_attn": True,
                "n_embd": 36,
                "n_head": 2,
            },
        ),
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="vision-encoder-decoder",
    tasks={"caption": no_section},
    read_config=read_config,
    build=Captioner,
    rename=rename,
    graphs=graphs,
    tokenizer="tokenizers",
    twin=TWIN,
    image_size=lambda config: config.encoder.image,
    details=lambda network: {
        "alignment": AlignmentSpec(
            over="patches",
            grid=network.config.encoder.grid,
            layer=alignment_layer(network.decoder.layers),
        )
    },
)
