"""SigLIP: one embedding space for images and texts, trained with a sigmoid for each pair.

Paper: Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training", §3 (arXiv 2303.15343); the
image tower pools by attention with one learned query (Zhai et al. 2021, "Scaling Vision
Transformers", §3.1, arXiv 2106.04560).
Tschannen et al. 2025, "SigLIP 2", §2.4 (arXiv 2502.14786): NaFlex, images of any aspect ratio.
Checkpoints: `model_type: siglip` (`google/siglip-*`, and those of SigLIP 2 with a fixed size) and
`siglip2` (`google/siglip2-*-naflex`).

Legend: B batch, T text positions, N patches (of NaFlex: most of an image), A pixels of a patch,
P rows, and columns, of a table of positions, D width of a tower, E width of the common space.

Differences from `transformers`: the towers are two graphs, each ending in normalised embeddings;
pixels come as uint8. Texts are padded to all T positions and have no mask: attention is not causal,
padding is attended to, and the last position is the text's embedding, as the model was trained.
Of NaFlex, positions of a picture of one column are interpolated as all others; antialiased
interpolation of torch 2.13 to a width of 1 gives each row the first one's on a CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, packed_projections
from export.layers.attention.attention import CrossAttention
from export.layers.blocks import BASE, MLP, BlockConfig, make_encoder_blocks
from export.layers.images.vision import (
    AnySizeTower,
    FixedSizeTower,
    PatchEmbedding,
    check_recipe,
    patch_count,
)
from export.models.dual_encoders import clip
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class NaFlexConfig:
    """The ViT of images of any aspect ratio."""

    supported = {"num_channels": 3}
    tower: BlockConfig = key()
    patch: int = key("patch_size", 16)
    positions: int = key("num_patches", 256)
    """P²."""

    @property
    def image(self) -> tuple[int, int]:
        """N where no recipe says it, and A + 1."""
        return self.positions, self.patch**2 + 1


@dataclass(frozen=True)
class Config(LimitedByText):
    """Both towers; the image tower's width is E, and every text is padded to all positions."""

    image: clip.ImageConfig | NaFlexConfig
    text: clip.TextConfig


DEFAULTS = BASE | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
"""Of a tower, in `transformers`."""


def read_config(
    values: Mapping[str, Any],
    model: str = "SiglipModel",
    form: type[clip.ImageConfig | NaFlexConfig] = clip.ImageConfig,
) -> Config:
    """The configuration; defaults are `transformers`' own.

    Args:
        model: The supported class.
        form: Of the image tower's part.

    Raises:
        CheckpointError: towers of two widths, or a table of positions that is not square.
    """
    reader = ConfigReader(values)
    reader.refuse_classes_but(model)
    image = reader.section("vision_config", DEFAULTS | {"patch_size": 16})
    text = reader.section(
        "text_config", DEFAULTS | {"vocab_size": 32000, "max_position_embeddings": 64}
    )
    image.refuse_unless(vision_use_head=True)
    width = image.integer("hidden_size")
    text.refuse_unless(projection_size=width)
    if text.values.get("projection_size") is None and text.integer("hidden_size") != width:
        raise CheckpointError(f"{text.place}: projection_size must be the image tower's {width}")
    read = image.read(form)
    if isinstance(read, NaFlexConfig) and isqrt(read.positions) ** 2 != read.positions:
        raise CheckpointError(f"{image.place}: num_patches = {read.positions} is no square")
    return Config(read, text.read(clip.TextConfig, end_token=None))


# ---------------------------------------------------------------------------------------- blocks


class AttentionPooling(nn.Module):
    """One learned query attends to all patches; an MLP with a residual follows."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(1, 1, config.width))
        self.attention = CrossAttention(config.heads)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.mlp = MLP(config.width, config.mlp_width, config.activation)

    def forward(self, patches: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, N, D), of which (B,) are no padding → (B, D)."""
        query = self.query.expand(patches.shape[0], -1, -1)
        pooled = self.attention(query, self.attention.project_kv(patches), lengths)
        return (pooled + self.mlp(self.norm(pooled))).squeeze(1)


# --------------------------------------------------------------------------------------- network


class VisionTransformer(FixedSizeTower):
    """A ViT without a class token; the norm behind its blocks is for its user to apply.

    Attributes:
        order: (N,) rows of the position table that the patches read; None: each its own.
    """

    order: Tensor | None

    def __init__(self, tower: BlockConfig, image: tuple[int, int], patch: tuple[int, int]) -> None:
        super().__init__(image)
        self.patches = PatchEmbedding(tower.width, patch, bias=True)
        self.positions = nn.Parameter(torch.zeros(patch_count(image, patch), tower.width))
        self.blocks = make_encoder_blocks(tower, is_norm_first=True)
        self.norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)
        self.register_buffer("order", None, persistent=False)

    def layer_outputs(self, pixels: Tensor) -> list[Tensor]:
        """The first block's input, then each block's output, (B, N, D)."""
        positions = self.positions if self.order is None else self.positions[self.order]
        outputs = [self.patches(self.pixel_norm(pixels)) + positions]
        for block in self.blocks:
            outputs.append(block(outputs[-1]))
        return outputs


class ImageTower(VisionTransformer):
    """Pooled by attention."""

    def __init__(self, config: clip.ImageConfig) -> None:
        super().__init__(config.tower, config.image, config.patch)
        self.pooling = AttentionPooling(config.tower)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, E), of length one."""
        x = self.layer_outputs(pixels)[-1]
        return functional.normalize(self.pooling(self.norm(x)), dim=-1)


class NaFlexTower(AnySizeTower):
    """A ViT over the patches of images of any aspect ratio, pooled by attention."""

    def __init__(self, config: NaFlexConfig) -> None:
        super().__init__()
        self.config, tower = config, config.tower
        self.patches = nn.Linear(3 * config.patch**2, tower.width)
        self.positions = nn.Parameter(torch.zeros(config.positions, tower.width))
        self.blocks = make_encoder_blocks(tower, is_norm_first=True)
        self.norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)
        self.pooling = AttentionPooling(tower)

    def prepare(self, image: ImageSpec) -> None:
        """As the base.

        Raises:
            CheckpointError: the recipe's patches have another size.
        """
        check_recipe(image, (image.shape[0], self.config.image[1]))
        super().prepare(image)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, N, A + 1, 3), a patch's row and column behind its pixels → (B, E), of length one."""
        places = pixels[:, :, -1, :2]  # (B, N, 2), from 1; 0 where there is no patch
        lengths = (places[..., 0] > 0).int().sum(dim=1).clamp(min=1).int()
        patches = self.pixel_norm(pixels[:, :, :-1]).permute(0, 2, 3, 1).flatten(2)
        x = self.patches(patches) + self._interpolate(places.clamp(min=1))
        for block in self.blocks:
            x = block(x, lengths)
        return functional.normalize(self.pooling(self.norm(x), lengths), dim=-1)

    def _interpolate(self, places: Tensor) -> Tensor:
        """The table at each image's own grid, (B, N, D): bilinear, against aliasing.

        The weights are those of `torch.nn.functional.interpolate`, of rows times of columns. The
        table stands in front of them, so that it is no layer and stays float32.
        """
        side = isqrt(self.config.positions)
        steps = side / places.amax(dim=1, keepdim=True)  # (B, 1, 2) cells of the table a patch
        centres = (places - 0.5) * steps
        distances = (torch.arange(side) + 0.5 - centres[..., None]).abs()  # (B, N, 2, P)
        near = functional.relu(1 - distances / steps.clamp(min=1)[..., None])
        rows, columns = (near / near.sum(dim=-1, keepdim=True)).unbind(dim=2)
        weights = (rows[..., :, None] * columns[..., None, :]).flatten(2)  # (B, N, P²)
        return (self.positions.T @ weights.transpose(1, 2)).transpose(1, 2)


class TextTower(nn.Module):
    """An encoder whose last position represents the text."""

    def __init__(self, config: clip.TextConfig, embedding_width: int) -> None:
        super().__init__()
        tower = config.tower
        self.tokens = nn.Embedding(config.vocabulary_size, tower.width)
        self.positions = nn.Parameter(torch.zeros(config.positions, tower.width))
        self.blocks = make_encoder_blocks(tower, is_norm_first=True)
        self.norm = nn.LayerNorm(tower.width, eps=tower.norm_epsilon)
        self.projection = nn.Linear(tower.width, embedding_width)

    def forward(self, token_ids: Tensor) -> Tensor:
        """(B, T), padded to all positions → (B, E), of length one."""
        x = self.tokens(token_ids) + self.positions
        for block in self.blocks:
            x = block(x)
        return functional.normalize(self.projection(self.norm(x[:, -1])), dim=-1)


class SigLIP(nn.Module):
    """Both towers, the trained temperature and bias."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding_width = config.image.tower.width
        image = config.image
        self.image = NaFlexTower(image) if isinstance(image, NaFlexConfig) else ImageTower(image)
        self.text = TextTower(config.text, self.embedding_width)
        self.logit_scale = nn.Parameter(torch.zeros(1))
        self.logit_bias = nn.Parameter(torch.zeros(1))
        self.positions = config.text.positions


def zero_shot_section(model: SigLIP, checkpoint: Checkpoint) -> dict[str, Any]:
    """How cosines become each pair's own probability (Zhai 2023 §3.2)."""
    return {
        "logit_scale": model.logit_scale.exp().item(),
        "logit_bias": model.logit_bias.item(),
        "activation": "sigmoid",
    }


# ----------------------------------------------------------------------------------------- names


def vision_names(theirs: str, ours: str) -> dict[str, Entry]:
    """The table of a `VisionTransformer`."""
    return {
        f"{theirs}.embeddings.patch_embedding": f"{ours}.patches.projection",
        f"{theirs}.embeddings.position_embedding.weight": f"{ours}.positions",
        f"{theirs}.embeddings.position_ids": None,
        f"{theirs}.post_layernorm": f"{ours}.norm",
        **clip.block_names(theirs, ours),
    }


HEAD = (
    *("probe", "attention.in_proj_weight", "attention.in_proj_bias", "attention.out_proj"),
    *("layernorm", "mlp.fc1", "mlp.fc2"),
)
"""Names of the pooling's tensors, below `head`."""


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    head, pooling = "vision_model.head", "image.pooling"
    table: dict[str, Entry] = {
        **vision_names("vision_model", "image"),
        f"{head}.probe": f"{pooling}.query",
        **packed_projections(f"{head}.attention", f"{pooling}.attention"),
        f"{head}.layernorm": f"{pooling}.norm",
        f"{head}.mlp.fc1": f"{pooling}.mlp.up",
        f"{head}.mlp.fc2": f"{pooling}.mlp.down",
        **clip.text_names("text_model"),
        "text_model.head": "text.projection",
        "logit_scale": "logit_scale",
        "logit_bias": "logit_bias",
    }
    if isinstance(config.image, NaFlexConfig):
        table["vision_model.embeddings.patch_embedding"] = "image.patches"
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: SigLIP, image: ImageSpec | None) -> Graphs:
    """One graph a tower (B dynamic, T fixed), each its own Triton model."""
    texts = Port(name="token_ids", dtype="int64", shape=("B", model.positions), role=Role.TOKENS)
    return clip.tower_graphs(model, image, (texts,), model.embedding_width)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="siglip",
    tasks={"zero-shot": zero_shot_section},
    read_config=read_config,
    build=SigLIP,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
)
SIGLIP2 = replace(
    ARCHITECTURE,
    name="siglip2",
    read_config=partial(read_config, model="Siglip2Model", form=NaFlexConfig),
)
"""Those of any aspect ratio."""
