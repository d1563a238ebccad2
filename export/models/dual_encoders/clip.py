"""CLIP: one embedding space for images and texts.

Paper: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language
Supervision", §2 (arXiv 2103.00020). Chuang et al. 2025, "Meta CLIP 2: A Worldwide Scaling Recipe"
(arXiv 2507.22062): the same network with the vocabulary of many languages.
Checkpoints: `openai/clip-vit-*` and others of `model_type: clip`; those of `metaclip_2`.

Legend: B batch, T text positions, N patches, D width of a tower, E width of the common space.

Differences from `transformers`: the towers are two graphs, each ending in normalised embeddings,
because labels are embedded once and images one by one; pixels come as uint8; texts need no
attention mask, because attention is causal and nothing behind the end token is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import (
    Architecture,
    Graphs,
    LimitedByPositions,
    LimitedByText,
    lower_stateless,
)
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, projections
from export.layers.attention.attention import within
from export.layers.blocks import BASE, BlockConfig, EncoderBlock, make_encoder_blocks
from export.layers.images.vision import (
    FixedSizeTower,
    PatchEmbedding,
    patch_count,
    pixels_port,
    prepare_tower,
)
from export.text_encoders.declaration import TEXTS
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError

LEGACY_END_TOKEN = 2  # written by old versions for every checkpoint, true or not


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The ViT; sizes are (height, width)."""

    supported = {"num_channels": 3}
    tower: BlockConfig = key()
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 32)


@dataclass(frozen=True, kw_only=True)
class TextConfig(LimitedByPositions):
    """The text tower."""

    tower: BlockConfig = key()
    vocabulary_size: int = key("vocab_size", 49408)
    positions: int = key("max_position_embeddings", 77)
    end_token: int | None
    """None: the largest id of a text is its end token, as in CLIP's published code."""


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both towers and the common space."""

    image: ImageConfig
    text: TextConfig
    embedding_width: int = key("projection_dim", 512)


IMAGE_DEFAULTS = BASE | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
TEXT_DEFAULTS = IMAGE_DEFAULTS | {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
}


def read_config(values: Mapping[str, Any], legacy_end: int | None = LEGACY_END_TOKEN) -> Config:
    """The configuration; defaults are `transformers`' own.

    Args:
        legacy_end: An end token that no text has; None: files give the true one.
    """
    reader = ConfigReader(values)
    text = read_text(reader, TEXT_DEFAULTS, legacy_end)
    return reader.read(Config, image=read_image(reader), text=text)


def read_text(
    reader: ConfigReader, defaults: Mapping[str, Any], legacy_end: int | None = LEGACY_END_TOKEN
) -> TextConfig:
    """The text tower of a checkpoint with sections for both towers."""
    text = tower_section(reader, "text", defaults)
    end_token = text.values.get("eos_token_id", 49407)
    if not isinstance(end_token, int):
        raise CheckpointError(f"{text.place}: eos_token_id must be one id, not {end_token!r}")
    end_token = None if end_token == legacy_end else end_token
    return text.read(TextConfig, end_token=end_token)


def read_image(reader: ConfigReader) -> ImageConfig:
    """The image tower of a checkpoint with sections for both towers."""
    return tower_section(reader, "vision", IMAGE_DEFAULTS).read(ImageConfig)


def tower_section(reader: ConfigReader, side: str, defaults: Mapping[str, Any]) -> ConfigReader:
    """A tower's section; `*_config_dict` of old checkpoints takes precedence."""
    old = f"{side}_config_dict"
    return reader.section(old if old in reader.given else f"{side}_config", defaults)


# --------------------------------------------------------------------------------------- network


class VisionTransformer(FixedSizeTower):
    """A ViT with a norm in front of its blocks, and one behind them for its user to apply."""

    def __init__(self, tower: BlockConfig, image: tuple[int, int], patch: tuple[int, int]) -> None:
        super().__init__(image)
        self.patches = PatchEmbedding(tower.width, patch, bias=False)
        self.class_token = nn.Parameter(torch.zeros(tower.width))
        self.positions = nn.Parameter(torch.zeros(patch_count(image, patch) + 1, tower.width))
        self.first_norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)
        self.blocks = make_encoder_blocks(tower, is_norm_first=True)
        self.norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)

    def hidden(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N + 1, D), the class token first."""
        return self.blocks[-1](self._earlier(pixels))

    def class_vector(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, D), of the class token."""
        last = self.blocks[-1]
        assert isinstance(last, EncoderBlock)
        return last.first(self._earlier(pixels)).squeeze(1)

    def layer_outputs(self, pixels: Tensor) -> list[Tensor]:
        """The first block's input, then each block's output, (B, N + 1, D)."""
        outputs = [self._embed(pixels)]
        for block in self.blocks:
            outputs.append(block(outputs[-1]))
        return outputs

    def _embed(self, pixels: Tensor) -> Tensor:
        """The first block's input, (B, N + 1, D)."""
        patches = self.patches(self.pixel_norm(pixels))
        class_token = self.class_token.expand(patches.shape[0], 1, -1)
        return self.first_norm(torch.cat([class_token, patches], dim=1) + self.positions)

    def _earlier(self, pixels: Tensor) -> Tensor:
        """The last block's input, (B, N + 1, D)."""
        x = self._embed(pixels)
        for block in self.blocks[:-1]:
            x = block(x)
        return x


class ImageTower(VisionTransformer):
    """The class token represents the image (§2.4)."""

    def __init__(self, config: ImageConfig, embedding_width: int) -> None:
        super().__init__(config.tower, config.image, config.patch)
        self.projection = nn.Linear(config.tower.width, embedding_width, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, E), of length one."""
        pooled = self.norm(self.class_vector(pixels))
        return functional.normalize(self.projection(pooled), dim=-1)


class TextTower(nn.Module):
    """A causal Transformer; the vector at the end token represents the text (§2.4)."""

    def __init__(self, config: TextConfig, embedding_width: int) -> None:
        super().__init__()
        tower = config.tower
        self.end_token = config.end_token
        self.tokens = nn.Embedding(config.vocabulary_size, tower.width)
        self.positions = nn.Parameter(torch.zeros(config.positions, tower.width))
        self.blocks = make_encoder_blocks(tower, is_norm_first=True, is_causal=True)
        self.norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)
        self.projection = nn.Linear(tower.width, embedding_width, bias=False)

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) right-padded, (B,) → (B, E), of length one."""
        return functional.normalize(self.vector(token_ids, lengths), dim=-1)

    def vector(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) right-padded, (B,) → (B, E), of any length."""
        x = self.tokens(token_ids) + self.positions[: token_ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        end = self._end(token_ids, lengths)[:, None, None].expand(-1, 1, x.shape[-1])
        return self.projection(self.norm(x.gather(1, end).squeeze(1)))

    def _end(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B,) index of the first end token."""
        inside = within(lengths, token_ids.shape[1])
        if self.end_token is None:
            return torch.where(inside, token_ids, -1).argmax(dim=1)
        return ((token_ids == self.end_token) & inside).int().argmax(dim=1)


class CLIP(nn.Module):
    """Both towers and the trained temperature."""

    def __init__(self, image: FixedSizeTower, text: nn.Module) -> None:
        super().__init__()
        self.image = image
        self.text = text
        self.logit_scale = nn.Parameter(torch.zeros(()))


def build(config: Config) -> CLIP:
    """The network of a `transformers` checkpoint."""
    width = config.embedding_width
    return CLIP(ImageTower(config.image, width), TextTower(config.text, width))


def zero_shot_section(model: CLIP, checkpoint: Checkpoint) -> dict[str, Any]:
    """The temperature, as it multiplies cosines."""
    return {"logit_scale": model.logit_scale.exp().item()}


# ----------------------------------------------------------------------------------------- names


def vision_names(theirs: str, ours: str) -> dict[str, Entry]:
    """The table of a `VisionTransformer`; `pre_layrnorm` is `transformers`' own spelling."""
    return {
        f"{theirs}.embeddings.class_embedding": f"{ours}.class_token",
        f"{theirs}.embeddings.patch_embedding": f"{ours}.patches.projection",
        f"{theirs}.embeddings.position_embedding.weight": f"{ours}.positions",
        f"{theirs}.embeddings.position_ids": None,
        f"{theirs}.pre_layrnorm": f"{ours}.first_norm",
        f"{theirs}.post_layernorm": f"{ours}.norm",
        **block_names(theirs, ours),
    }


def block_names(theirs: str, ours: str) -> dict[str, Entry]:
    """The table of a tower's blocks."""
    return layer_names(f"{theirs}.encoder.layers.*", f"{ours}.blocks.*")


def layer_names(block: str, own: str) -> dict[str, Entry]:
    """The table of one block."""
    return {
        **projections(f"{block}.self_attn", f"{own}.attention"),
        f"{block}.layer_norm1": f"{own}.attention_norm",
        f"{block}.layer_norm2": f"{own}.mlp_norm",
        f"{block}.mlp.fc1": f"{own}.mlp.up",
        f"{block}.mlp.fc2": f"{own}.mlp.down",
    }


def text_names(theirs: str) -> dict[str, Entry]:
    """The table of a text tower without its projection."""
    return {
        f"{theirs}.embeddings.token_embedding": "text.tokens",
        f"{theirs}.embeddings.position_embedding.weight": "text.positions",
        f"{theirs}.embeddings.position_ids": None,
        f"{theirs}.final_layer_norm": "text.norm",
        **block_names(theirs, "text"),
    }


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    table: dict[str, Entry] = {
        **vision_names("vision_model", "image"),
        "visual_projection": "image.projection",
        **text_names("text_model"),
        "text_projection": "text.projection",
        "logit_scale": "logit_scale",
    }
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Any, image: ImageSpec | None) -> Graphs:
    """One graph a tower (B, and T of texts, dynamic), each its own Triton model."""
    return tower_graphs(model, image, TEXTS, model.text.projection.out_features)


def tower_graphs(
    model: Any, image: ImageSpec | None, texts: tuple[Port, ...], width: int
) -> Graphs:
    """The graphs of a model with the towers `image` and `text`.

    Args:
        texts: Inputs of the text tower.
        width: E.
    """
    image = prepare_tower(model.image, image)
    embedding = Port(name="embedding", dtype="float32", shape=("B", width), role=Role.EMBEDDING)
    lowerings = {
        "image": lower_stateless(model.image, (pixels_port(image),), embedding),
        "text": lower_stateless(model.text, texts, embedding),
    }
    vocabulary = model.text.tokens.num_embeddings
    return Graphs(lowerings, parts={"image": "", "text": "-text"}, source_vocabulary=vocabulary)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="clip",
    tasks={"zero-shot": zero_shot_section},
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
)
METACLIP_2 = replace(
    ARCHITECTURE, name="metaclip_2", read_config=partial(read_config, legacy_end=None)
)
"""Its end token is 2."""
