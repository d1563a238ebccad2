"""LLaVA: a language model that reads the patches of images as tokens.

Papers: Liu et al. 2023, "Visual Instruction Tuning", §4.1 (arXiv 2304.08485); Liu et al. 2023,
"Improved Baselines with Visual Instruction Tuning", §3 (arXiv 2310.03744): two linear layers
project the patches of an image tower to the language model's width.
Checkpoints: `model_type: llava` (`llava-hf/llava-1.5-7b-hf`, `llava-hf/bakLlava-v1-hf`,
`llava-hf/llava-interleave-qwen-0.5b-hf`) with an image tower of `TOWERS` and a language model of
`LANGUAGE_MODELS`.

Legend: B images, N patches, L tokens of an image, E width of the image tower, D width.

Differences from `transformers`: an image's vectors are computed once, by `admit`; blocks of the
image tower whose output is not read are left out; pixels come as uint8.

Decision D106.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.decoder_graphs.chat_section import image_caption_section, image_chat_section
from export.decoder_graphs.image_tokens import image_token_graphs
from export.decoder_graphs.language_model import DecoderConfig
from export.layers.activation import activation
from export.layers.block_config import BlockConfig
from export.layers.decoder import TransformerDecoder
from export.layers.vision import patch_count
from export.models import clip, llama, qwen2, siglip
from export.tokenizer.prompt_images import IMAGE_TOKEN, image_tokens
from export.twin import TINY_IMAGE, tiny_twin
from inference.bundle.manifest import ImageSpec, Limits, PromptImages
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

LANGUAGE_MODELS: Mapping[str, Architecture] = {
    "llama": llama.ARCHITECTURE,
    "mistral": llama.ARCHITECTURE,
    "qwen2": qwen2.ARCHITECTURE,
}
"""`model_type` of `text_config` → the decoder."""
_SEVEN_BILLION = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**_SEVEN_BILLION, "vocab_size": 32000, "intermediate_size": 11008},
    "mistral": {**_SEVEN_BILLION, "vocab_size": 32000, "intermediate_size": 14336},
    "qwen2": {**_SEVEN_BILLION, "vocab_size": 151936, "intermediate_size": 22016},
}
"""What `transformers` takes where `text_config` says nothing, as in the published files."""


class VisionTransformer(Protocol):
    """An image tower, of `clip.py` or of `siglip.py`."""

    blocks: nn.ModuleList
    norm: nn.LayerNorm

    def layer_outputs(self, pixels: Tensor) -> list[Tensor]:
        """The first block's input, then each block's output, (B, positions, E)."""
        ...

    def prepare(self, image: ImageSpec) -> None:
        """See `FixedSizeTower.prepare`."""
        ...


@dataclass(frozen=True)
class Tower:
    """One kind of image tower.

    Attributes:
        read: Its section of `config.json`.
        build: Blocks, image and patch → the tower.
        names: Prefixes of its names and of ours → the table.
        leading: Tokens in front of the patches.
        patch: Default of `patch_size`.
    """

    read: Callable[[ConfigReader], BlockConfig]
    build: Callable[[BlockConfig, tuple[int, int], tuple[int, int]], VisionTransformer]
    names: Callable[[str, str], dict[str, Entry]]
    leading: int
    patch: int


TOWERS: Mapping[str, Tower] = {
    "clip_vision_model": Tower(
        partial(clip.read_tower, width=768, mlp_width=3072, heads=12),
        clip.VisionTransformer,
        clip.vision_names,
        leading=1,
        patch=32,
    ),
    "siglip_vision_model": Tower(
        siglip.read_tower,
        siglip.VisionTransformer,
        lambda theirs, ours: {
            **siglip.vision_names(theirs, ours),
            **{f"{theirs}.head.{name}": None for name in siglip.HEAD},
        },
        leading=0,
        patch=16,
    ),
}
"""`model_type` of `vision_config` → the tower."""


@dataclass(frozen=True)
class ImageConfig:
    """The image tower, its projection, and what is read of it.

    Attributes:
        layers: Whose outputs are read, side by side; 0 is the first block's input.
        is_first_skipped: Whether the first position is left out: CLIP's class token.
        activation: Between both layers of the projection.
    """

    kind: Tower
    tower: BlockConfig
    image: tuple[int, int]
    patch: tuple[int, int]
    layers: tuple[int, ...]
    is_first_skipped: bool
    activation: str
    has_bias: bool

    @property
    def tokens(self) -> int:
        """L."""
        return patch_count(self.image, self.patch) + self.kind.leading - self.is_first_skipped


@dataclass(frozen=True)
class Config:
    """Both halves."""

    image: ImageConfig
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def limits(self) -> Limits:
        """The language model's; each image takes L of the positions."""
        return self.text.limits


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another image tower or language model; a token or a layer that they lack.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    section = reader.section("text_config")
    kind = section.choice("model_type", LANGUAGE_MODELS, "llama")
    given = {name: value for name, value in section.values.items() if value is not None}
    tied = {"tie_word_embeddings": bool(values.get("tie_word_embeddings"))}
    language = LANGUAGE_MODELS[kind]
    text = language.read_config({**_DEFAULTS[kind], **tied, **given, "model_type": kind})
    token = reader.index(IMAGE_TOKEN, reader.index("image_token_index", 32000))
    if token >= text.vocabulary_size:
        raise CheckpointError(
            f"{reader.place}: image_token_index = {token} is outside the vocabulary of "
            f"{text.vocabulary_size} tokens"
        )
    return Config(_read_image(reader), language, text, token)


def _read_image(reader: ConfigReader) -> ImageConfig:
    vision = reader.section("vision_config")
    vision.refuse_unless(num_channels=3)
    kind = TOWERS[vision.choice("model_type", TOWERS, "clip_vision_model")]
    tower = kind.read(vision)
    given = reader.values.get("vision_feature_layer", -2)
    wanted = given if isinstance(given, list) else [given]
    layers = tuple(layer + (layer < 0) * (tower.layers + 1) for layer in wanted)
    if not layers or not all(0 <= layer <= tower.layers for layer in layers):
        raise CheckpointError(
            f"{reader.place}: vision_feature_layer = {given!r} is outside the {tower.layers} blocks"
        )
    strategy = reader.choice("vision_feature_select_strategy", ("default", "full"), "default")
    return ImageConfig(
        kind,
        tower,
        image=vision.pair("image_size", 224),
        patch=vision.pair("patch_size", kind.patch),
        layers=layers,
        is_first_skipped=strategy == "default",
        activation=reader.text("projector_hidden_act", "gelu"),
        has_bias=reader.flag("multimodal_projector_bias", True),
    )


def generation(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """`generation_config.json`, or what the configuration of the language model says."""
    own = checkpoint.json("generation_config.json")
    text = checkpoint.config.get("text_config") or {}
    given = {name: value for name, value in checkpoint.config.items() if value is not None}
    return own or {**_ENDS, **text, **given}


_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
"""Of Llama, where its section says nothing."""


# --------------------------------------------------------------------------------------- network


class ImageEncoder(nn.Module):
    """Patches of an image tower, projected."""

    def __init__(self, config: ImageConfig, width: int) -> None:
        super().__init__()
        self.layers, self.skipped = config.layers, int(config.is_first_skipped)
        self.vit = config.kind.build(config.tower, config.image, config.patch)
        del self.vit.norm  # of the pooled vector, which is not used
        self.vit.blocks = self.vit.blocks[: max(config.layers)]
        read, bias = config.tower.width * len(config.layers), config.has_bias
        self.first = nn.Linear(read, width, bias=bias)
        self.activation = activation(config.activation)
        self.second = nn.Linear(width, width, bias=bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        outputs = self.vit.layer_outputs(pixels)
        read = torch.cat([outputs[layer] for layer in self.layers], dim=-1)
        return self.second(self.activation(self.first(read[:, self.skipped :])))


class Llava(nn.Module):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = ImageEncoder(config.image, config.text.width)
        decoder = config.language.build(config.text).get_submodule("decoder")
        assert isinstance(decoder, TransformerDecoder)
        self.decoder = decoder

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        tokens = self.config.image.tokens
        return PromptImages(positions=tokens, token_id=self.config.image_token, tokens=tokens)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table: dict[str, Entry] = {}
    tower = config.image.kind.names("", "encoder.vit") | {".post_layernorm": None}
    unread = range(max(config.image.layers), config.image.tower.layers)
    for prefix in ("", "model."):
        for place in ("vision_tower.vision_model", "vision_tower"):
            table |= {f"{prefix}{place}{name}": entry for name, entry in tower.items()}
            blocks = clip.block_names("", "")
            table |= {
                f"{prefix}{place}{name.replace('*', str(number))}": None
                for name in blocks
                for number in unread
            }
        table[f"{prefix}multi_modal_projector.linear_1"] = "encoder.first"
        table[f"{prefix}multi_modal_projector.linear_2"] = "encoder.second"
    for name, entry in config.language.rename(config.text).table.items():
        table[f"language_model.{name}"] = entry
        table[name.replace("model.", "model.language_model.", 1)] = entry
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Llava, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I dynamic) and `step` (R, T, P, B, S dynamic; in place)."""
    assert image is not None
    model.encoder.vit.prepare(image)
    return image_token_graphs(model.encoder, model.decoder, image, model.images)


# ------------------------------------------------------------------------------------------ twin

_TINY_IMAGE = TINY_IMAGE | {
    "model_type": "clip_vision_model",
    "image_size": 16,
    "num_hidden_layers": 3,
    "layer_norm_eps": 1e-3,
}
_TINY_TEXT = llama.TINY | {"model_type": "llama", "max_position_embeddings": 64, "pad_token_id": 0}
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "image_token_index": 61,
    "image_seq_length": 4,
}
TWIN = tiny_twin(
    "transformers:LlavaForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "num_attention_heads": 6, "head_dim": 10, "rms_norm_eps": 1e-3},
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "num_attention_heads": 3},
            "image_seq_length": 4,
            "multimodal_projector_bias": False,
        },
        "two layers, with the class token": {
            "vision_feature_layer": [-1, 1],
            "vision_feature_select_strategy": "full",
            "vision_config": _TINY_IMAGE | {"image_size": 8},
            "image_seq_length": 2,
            "projector_hidden_act": "gelu_pytorch_tanh",
            "text_config": _TINY_TEXT | {"tie_word_embeddings": True},
            "tie_word_embeddings": True,
        },
        "mistral": {"text_config": _TINY_TEXT | {"model_type": "mistral", "sliding_window": 3}},
        "siglip and qwen2": {
            "text_config": _TINY_TEXT | {"model_type": "qwen2"},
            "vision_config": _TINY_IMAGE | {"model_type": "siglip_vision_model"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="llava",
    tasks={
        "chat": image_chat_section,
        "generate": image_tokens,
        "caption": image_caption_section,
    },
    read_config=read_config,
    build=Llava,
    rename=rename,
    graphs=graphs,
    twin=TWIN,
    image_size=lambda config: config.image.image,
    details=lambda network: {"images": network.images},
    generation=generation,
)
