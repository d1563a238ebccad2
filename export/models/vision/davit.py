"""DaViT: attention inside windows and, in turn, between channels.

Paper: Ding et al. 2022, "DaViT: Dual Attention Vision Transformers", §3 (arXiv 2204.03645).
The network alone, in the form that Florence-2 has: convolutions with overlap between stages, and
3 x 3 depthwise convolutions in front of every attention and every MLP.

Legend: B batch, h x w grid of patches, N = h·w, D width of a stage, G groups, K = D / G.

Differences from `transformers`: inference only; pixels come as uint8; queries, keys and values are
projected by three layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, WeightLayout
from export.layers.attention.attention import Attention, SelfAttention
from export.layers.attention.heads import Heads
from export.layers.attention.windows import Grid, merge, pad_grid, partition
from export.layers.blocks import MLP
from export.layers.images.vision import AnySizeTower
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_SIZES = ("depths", "embed_dim", "num_heads", "num_groups", "patch_size", "patch_stride")


@dataclass(frozen=True)
class StageConfig:
    """One resolution; `kernel`, `stride` and `padding` are those of its first convolution."""

    depth: int
    width: int
    heads: int
    groups: int
    kernel: int
    stride: int
    padding: int
    is_norm_first: bool
    """Whether the norm is in front of the first convolution."""

    def grid(self, size: Grid) -> Grid:
        """Rows and columns that the first convolution makes of `size`."""
        height, width = size
        room = 2 * self.padding - self.kernel
        return (height + room) // self.stride + 1, (width + room) // self.stride + 1


@dataclass(frozen=True)
class Config:
    """The network's part of `config.json`."""

    stages: tuple[StageConfig, ...]
    window: int = key("window_size", 12)
    mlp_ratio: float = key("mlp_ratio", 4.0)
    activation: str = key("activation_function", "gelu", "activation")
    has_bias: bool = key("qkv_bias", True)
    """Of queries, keys and values."""

    @property
    def width(self) -> int:
        """D of the last stage."""
        return self.stages[-1].width

    def grid(self, image: Grid) -> Grid:
        """Rows and columns of the last stage for an image's (height, width)."""
        for stage in self.stages:
            image = stage.grid(image)
        return image


def read_config(reader: ConfigReader) -> Config:
    """The network's section of `config.json`.

    Raises:
        CheckpointError: other than one number a stage, or heads that do not share out a width.
    """
    reader.refuse_unless(in_channels=3)
    columns: list[tuple[int, ...]] = [reader.sizes(name) for name in _SIZES]
    columns += [_counts(reader, "patch_padding"), _counts(reader, "patch_prenorm")]
    if len({len(column) for column in columns}) != 1 or not columns[0]:
        names = ", ".join((*_SIZES, "patch_padding"))
        raise CheckpointError(f"{reader.place}: {names} and patch_prenorm need one value a stage")
    stages = tuple(
        StageConfig(depth, width, heads, groups, kernel, stride, padding, bool(is_norm_first))
        for depth, width, heads, groups, kernel, stride, padding, is_norm_first in zip(
            *columns, strict=True
        )
    )
    for stage in stages:
        reader.divide(stage.width, stage.heads)
        reader.divide(stage.width, stage.groups)
    return reader.read(Config, stages=stages)


def _counts(reader: ConfigReader, name: str) -> tuple[int, ...]:
    """A list of whole numbers from 0, or of flags."""
    value = reader.values.get(name)
    if not isinstance(value, list) or not all(isinstance(n, int) and n >= 0 for n in value):
        raise CheckpointError(f"{reader.place}: {name} must be a list, not {value!r}")
    return tuple(value)


# ---------------------------------------------------------------------------------------- blocks


def convolve(convolution: nn.Module, x: Tensor) -> Tensor:
    """(B, h, w, D) → (B, h', w', D')."""
    return convolution(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class Windows(nn.Module):
    """Attention inside windows; zeros fill the last ones up (§3.2)."""

    def __init__(self, heads: Heads, side: int) -> None:
        super().__init__()
        self.side = side
        self.attention = SelfAttention(heads)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        height, width = x.shape[1:3]
        x = pad_grid(x, (self.side, self.side))
        windows = self.attention(partition(x, self.side))
        return merge(windows, self.side, (x.shape[1], x.shape[2]))[:, :height, :width]


class Channels(Attention):
    """Attention between the channels of each group, over all patches (§3.3)."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        patches = x.flatten(1, 2)
        query, key, value = (
            self.split(part(patches)) for part in (self.query, self.key, self.value)
        )  # (B, G, N, K)
        scale = patches.shape[1] ** -0.5
        weights = ((query * scale).transpose(-1, -2) @ key).softmax(dim=-1)  # (B, G, K, K)
        mixed = value @ weights.transpose(-1, -2)
        return self.out(self.join(mixed)).unflatten(1, x.shape[1:3])


class Block(nn.Module):
    """One kind of attention and an MLP, behind norms, each with a convolution in front."""

    def __init__(self, config: Config, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.attention_filter = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.attention_norm = nn.LayerNorm(width)
        self.attention = attention
        self.mlp_filter = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = MLP(width, int(config.mlp_ratio * width), config.activation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h, w, D)."""
        x = x + convolve(self.attention_filter, x)
        x = x + self.attention(self.attention_norm(x))
        x = x + convolve(self.mlp_filter, x)
        return x + self.mlp(self.mlp_norm(x))


class Stage(nn.Module):
    """A convolution to this stage's resolution and width, then its blocks in pairs."""

    def __init__(self, config: Config, stage: StageConfig, inner: int) -> None:
        super().__init__()
        width = stage.width
        self.is_norm_first = stage.is_norm_first
        self.norm = nn.LayerNorm(inner if stage.is_norm_first else width)
        self.convolution = nn.Conv2d(inner, width, stage.kernel, stage.stride, stage.padding)
        heads = Heads(width, stage.heads, bias=config.has_bias)
        groups = Heads(width, stage.groups, bias=config.has_bias)
        self.spatial = nn.ModuleList()
        self.channel = nn.ModuleList()
        for _ in range(stage.depth):
            self.spatial.append(Block(config, width, Windows(heads, config.window)))
            self.channel.append(Block(config, width, Channels(groups)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, h, w, D) → (B, h', w', D')."""
        x = self.norm(x) if self.is_norm_first else x
        x = convolve(self.convolution, x)
        x = x if self.is_norm_first else self.norm(x)
        for spatial, channel in zip(self.spatial, self.channel, strict=True):
            x = channel(spatial(x))
        return x


# --------------------------------------------------------------------------------------- network


class DaViT(AnySizeTower):
    """Pixels → the grid of the last stage."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        inner = (3, *(stage.width for stage in config.stages))
        self.stages = nn.ModuleList(
            Stage(config, stage, width) for stage, width in zip(config.stages, inner, strict=False)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, h, w, D)."""
        x = self.pixel_norm(pixels).permute(0, 2, 3, 1)
        for stage in self.stages:
            x = stage(x)
        return x


# ----------------------------------------------------------------------------------------- names


def rename_network(theirs: str, ours: str) -> dict[str, Entry]:
    """The network's names below a prefix on either side."""
    table: dict[str, Entry] = {
        "convs.*.conv": "stages.*.convolution",
        "convs.*.norm": "stages.*.norm",
        **_block_names("spatial", "window_attn", "attention.attention"),
        **_block_names("channel", "channel_attn", "attention"),
    }
    return Rename(table).prefixed(theirs, ours)


def _block_names(kind: str, attention: str, own: str) -> dict[str, Entry]:
    theirs, ours = f"blocks.*.*.{kind}_block", f"stages.*.{kind}.*"
    parts = ("query", "key", "value")
    return {
        f"{theirs}.conv1": f"{ours}.attention_filter",
        f"{theirs}.norm1": f"{ours}.attention_norm",
        f"{theirs}.{attention}.qkv": WeightLayout(tuple(f"{ours}.{own}.{part}" for part in parts)),
        f"{theirs}.{attention}.proj": f"{ours}.{own}.out",
        f"{theirs}.conv2": f"{ours}.mlp_filter",
        f"{theirs}.norm2": f"{ours}.mlp_norm",
        f"{theirs}.ffn.fc1": f"{ours}.mlp.up",
        f"{theirs}.ffn.fc2": f"{ours}.mlp.down",
    }
