"""GroupViT: CLIP whose image tower merges patches into groups.

Paper: Xu et al. 2022, "GroupViT: Semantic Segmentation Emerges from Text Supervision", §3
(arXiv 2202.11094): group tokens run through the blocks of a stage beside the patches; each patch is
then assigned to one of them, and the next stage reads the groups.
Checkpoints: `model_type: groupvit` (`nvidia/groupvit-gcc-yfcc`, `-redcaps`), class `GroupViTModel`.

Legend: B batch, N patches or groups of the stage before, T group tokens, G groups, D width of the
image tower, E width of the common space.

Differences from `transformers`: as CLIP's; the assignment is a hard argmax, without the terms by
which a gradient passes it; for export batch normalisation is folded into the layer in
front of it. Masks are not computed: published recipes cut the sides of an image off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.config.config_reader import MOST_LAYERS, ConfigReader, key
from export.config.weight_names import Names, Rename, normed_names, projections
from export.layers.activation import activation
from export.layers.attention.attention import CrossAttention
from export.layers.blocks import MLP, BlockConfig, make_encoder_blocks
from export.layers.images.convolutions import NormedLinear
from export.layers.images.image_heads import mean_vector
from export.layers.images.vision import FixedSizeTower, PatchEmbedding, patch_count
from export.models.dual_encoders import clip
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The image tower; tuples hold one number a stage."""

    supported = {"num_channels": 3}
    blocks: BlockConfig
    """Of one stage; `layers` is of no use."""
    depths: tuple[int, ...]
    group_tokens: tuple[int, ...]
    """0: the stage forms no groups, as all behind it."""
    groups: tuple[int, ...]
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 16)
    token_width: int
    """Inner width of the MLP that turns group tokens into groups."""
    channel_width: int
    assign_epsilon: float = key("assign_eps", 1.0)


@dataclass(frozen=True, kw_only=True)
class Config(clip.Config):
    """Both towers and the common space."""

    image: ImageConfig  # type: ignore[assignment]
    embedding_width: int = key("projection_dim", 256)
    projection_width: int = key("projection_intermediate_dim", 4096)


IMAGE_DEFAULTS = clip.IMAGE_DEFAULTS | {
    "hidden_act": "gelu",
    "hidden_size": 384,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
}
TEXT_DEFAULTS = clip.TEXT_DEFAULTS | {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another class, or stages that do not fit together.
    """
    reader = ConfigReader(values)
    reader.refuse_classes_but("GroupViTModel")
    image = _read_image(clip.tower_section(reader, "vision", IMAGE_DEFAULTS))
    return reader.read(Config, image=image, text=clip.read_text(reader, TEXT_DEFAULTS))


def _read_image(reader: ConfigReader) -> ImageConfig:
    depths = reader.sizes("depths", [6, 3, 3])
    tokens = _counts(reader, "num_group_tokens", [64, 8, 0], len(depths))
    groups = _counts(reader, "num_output_groups", [64, 8, 8], len(depths))
    if sum(depths) > MOST_LAYERS:
        raise CheckpointError(f"{reader.place}: depths are over {MOST_LAYERS} layers")
    grouping = sum(count > 0 for count in tokens)
    if not grouping or not all(tokens[:grouping]) or not all(groups[:grouping]):
        raise CheckpointError(
            f"{reader.place}: num_group_tokens must be over 0 in the first stages, with groups in "
            f"num_output_groups, and 0 behind them, not {list(tokens)} with {list(groups)}"
        )
    if tokens[: grouping - 1] != groups[: grouping - 1]:
        raise CheckpointError(
            f"{reader.place}: num_output_groups must be num_group_tokens in front of another stage "
            f"with group tokens, not {list(groups)} with {list(tokens)}"
        )
    if reader.number("assign_eps", 1.0) <= 0:  # what a group without patches is divided by
        raise CheckpointError(f"{reader.place}: assign_eps must be positive")
    blocks = reader.read(BlockConfig)
    ratios = reader.find("assign_mlp_ratio", (0.5, 4))
    pair = ratios if isinstance(ratios, list | tuple) else (ratios, ratios)
    if len(pair) != 2 or not all(
        type(each) in (int, float) and 1 / blocks.width <= each < 1e4 for each in pair
    ):
        raise CheckpointError(f"{reader.place}: assign_mlp_ratio must be two numbers, not {ratios}")
    token_width, channel_width = (int(ratio * blocks.width) for ratio in pair)
    return reader.read(
        ImageConfig,
        blocks=blocks,
        depths=depths,
        group_tokens=tokens,
        groups=groups,
        token_width=token_width,
        channel_width=channel_width,
    )


def _counts(reader: ConfigReader, name: str, default: list[int], stages: int) -> tuple[int, ...]:
    """A whole number ≥ 0 for each stage."""
    counts = reader.find(name, default)
    is_list = isinstance(counts, list | tuple) and len(counts) == stages
    if not is_list or not all(type(count) is int and 0 <= count < 2**31 for count in counts):
        raise CheckpointError(f"{reader.place}: {name} needs {stages} numbers, not {counts!r}")
    return tuple(counts)


# --------------------------------------------------------------------------------------- network


class TokenMLP(nn.Module):
    """A layer up and one down over the tokens, not the channels: (B, T, D) → (B, G, D)."""

    def __init__(self, count: int, inner: int, output: int, activation_name: str) -> None:
        super().__init__()
        self.up = nn.Linear(count, inner)
        self.activation = activation(activation_name)
        self.down = nn.Linear(inner, output)

    def forward(self, tokens: Tensor) -> Tensor:
        """The new tokens."""
        return self.down(self.activation(self.up(tokens.transpose(1, 2)))).transpose(1, 2)


class Assignment(nn.Module):
    """Each patch belongs to the group that is most like it (§3.2).

    Args:
        tokens: T.
        groups: G.
    """

    def __init__(self, config: ImageConfig, tokens: int, groups: int) -> None:
        super().__init__()
        blocks, width = config.blocks, config.blocks.width
        self.epsilon = config.assign_epsilon
        (
            self.token_norm,
            self.group_norm,
            self.patch_norm,
            self.mlp_norm,
            self.out_norm,
            self.norm,
        ) = (nn.LayerNorm(width, eps=blocks.norm_epsilon) for _ in range(6))
        self.to_groups = TokenMLP(tokens, config.token_width, groups, blocks.activation)
        self.attention = CrossAttention(blocks.heads)
        self.mlp = MLP(width, blocks.mlp_width, blocks.activation)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.channel_mlp = MLP(width, config.channel_width, blocks.activation)

    def forward(self, patches: Tensor, tokens: Tensor) -> Tensor:
        """(B, N, D) and (B, T, D) → (B, G, D)."""
        patches = self.patch_norm(patches)
        groups = self.group_norm(self.to_groups(self.token_norm(tokens)))
        x = groups + self.attention(groups, self.attention.project_kv(patches))
        groups = self.out_norm(x + self.mlp(self.mlp_norm(x)))
        x = groups + self.out(self._assign(groups, patches) @ self.value(patches))
        return x + self.channel_mlp(self.norm(x))

    def _assign(self, groups: Tensor, patches: Tensor) -> Tensor:
        """(B, G, N): the share of each patch in the mean of its group."""
        scores = self.query(groups) @ self.key(patches).transpose(1, 2)
        own = scores.argmax(dim=1, keepdim=True) == torch.arange(groups.shape[1])[:, None]
        weights = own.float()
        return weights / (weights.sum(dim=-1, keepdim=True) + self.epsilon)


class Stage(nn.Module):
    """Blocks over patches and group tokens, then an assignment.

    Args:
        before: T of the stage in front, 0 for the first one.
    """

    def __init__(self, config: ImageConfig, number: int, before: int) -> None:
        super().__init__()
        count, width = config.group_tokens[number], config.blocks.width
        depth = config.depths[number]
        self.count = count
        self.blocks = make_encoder_blocks(replace(config.blocks, layers=depth), is_norm_first=True)
        if count:
            self.tokens = nn.Parameter(torch.zeros(1, count, width))
            self.assignment = Assignment(config, count, config.groups[number])
        self.past: nn.Sequential | None = None
        if before and count:
            norm = nn.LayerNorm(width, eps=config.blocks.norm_epsilon)
            mlp = TokenMLP(before, width // 2, count, config.blocks.activation)
            self.past = nn.Sequential(norm, mlp)

    def forward(self, patches: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(B, N, D) and the group tokens of the stage in front → (B, G, D) and its own tokens."""
        x, size = patches, patches.shape[1]
        if self.count:
            tokens = self.tokens.expand(x.shape[0], -1, -1)
            if self.past is not None:
                tokens = tokens + self.past(before)
            x = torch.cat([x, tokens], dim=1)
        for block in self.blocks:
            x = block(x)
        if not self.count:
            return x, None
        return self.assignment(x[:, :size], x[:, size:]), x[:, size:]


class Projection(nn.Module):
    """Two layers into the common space: (B, D) → (B, E)."""

    def __init__(self, width: int, inner: int, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features
        self.up = NormedLinear(width, inner, bias=True)
        self.down = nn.Linear(inner, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors of any length."""
        return self.down(functional.relu(self.up(x)))


class ImageTower(FixedSizeTower):
    """The mean of the last groups represents the image."""

    def __init__(self, config: Config) -> None:
        image = config.image
        super().__init__(image.image)
        width, epsilon = image.blocks.width, image.blocks.norm_epsilon
        self.patches = PatchEmbedding(width, image.patch, bias=True)
        self.patch_norm = nn.LayerNorm(width, eps=epsilon)
        self.positions = nn.Parameter(torch.zeros(1, patch_count(image.image, image.patch), width))
        self.stages = nn.ModuleList(
            Stage(image, number, before)
            for number, before in enumerate((0, *image.group_tokens[:-1]))
        )
        self.norm = nn.LayerNorm(width, eps=epsilon)
        self.projection = Projection(width, config.projection_width, config.embedding_width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, E), of length one."""
        x = self.patch_norm(self.patches(self.pixel_norm(pixels))) + self.positions
        tokens: Tensor | None = None
        for stage in self.stages:
            x, tokens = stage(x, tokens)
        return functional.normalize(self.projection(mean_vector(self.norm(x))), dim=-1)


def build(config: Config) -> clip.CLIP:
    """Both towers and the trained temperature."""
    text = clip.TextTower(config.text, config.embedding_width)
    text.projection = Projection(  # type: ignore[assignment]
        config.text.tower.width, config.projection_width, config.embedding_width
    )
    return clip.CLIP(ImageTower(config), text)


# ----------------------------------------------------------------------------------------- names


def _projection_names(theirs: str, ours: str) -> Names:
    return {
        **normed_names(f"{theirs}.0", f"{theirs}.1", f"{ours}.up", "linear"),
        f"{theirs}.3": f"{ours}.down",
    }


def _mlp_names(theirs: str, ours: str) -> Names:
    return {f"{theirs}.fc1": f"{ours}.up", f"{theirs}.fc2": f"{ours}.down"}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    stage, own = "vision_model.encoder.stages.*", "image.stages.*"
    assign, assigned = f"{stage}.downsample", f"{own}.assignment"
    before = f"{assign}.pre_assign_attn"
    table: Names = {
        "vision_model.embeddings.patch_embeddings.projection": "image.patches.projection",
        "vision_model.embeddings.position_embeddings": "image.positions",
        "vision_model.embeddings.layernorm": "image.patch_norm",
        "vision_model.layernorm": "image.norm",
        **_projection_names("visual_projection", "image.projection"),
        **clip.layer_names(f"{stage}.layers.*", f"{own}.blocks.*"),
        f"{stage}.group_token": f"{own}.tokens",
        f"{stage}.group_projector.*": f"{own}.past.*",
        **_mlp_names(f"{stage}.group_projector.*", f"{own}.past.*"),
        f"{assign}.norm_tokens": f"{assigned}.token_norm",
        **_mlp_names(f"{assign}.mlp_inter", f"{assigned}.to_groups"),
        f"{assign}.norm_post_tokens": f"{assigned}.group_norm",
        f"{assign}.norm_x": f"{assigned}.patch_norm",
        **projections(f"{before}.attn", f"{assigned}.attention"),
        f"{before}.norm2": f"{assigned}.mlp_norm",
        **_mlp_names(f"{before}.mlp", f"{assigned}.mlp"),
        f"{before}.norm_post": f"{assigned}.out_norm",
        **projections(f"{assign}.assign", assigned, "q_proj k_proj v_proj proj"),
        f"{assign}.norm_new_x": f"{assigned}.norm",
        **_mlp_names(f"{assign}.mlp_channels", f"{assigned}.channel_mlp"),
        **clip.text_names("text_model"),
        **_projection_names("text_projection", "text.projection"),
        "logit_scale": "logit_scale",
    }
    return Rename(table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = replace(
    clip.ARCHITECTURE, name="groupvit", read_config=read_config, build=build, rename=rename
)
