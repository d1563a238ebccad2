"""CLIPSeg: masks of an image for texts that no mask was trained for.

Paper: Lüddecke & Ecker 2022, "Image Segmentation Using Text and Image Prompts", §3
(arXiv 2112.10003): outputs of some blocks of CLIP's image tower are added up by a small decoder,
which the vector of a text modulates (FiLM: Perez et al. 2018, arXiv 1709.07871).
Checkpoints: `model_type: clipseg` (`CIDAS/clipseg-*`), class `CLIPSegForImageSegmentation`.

Legend: B batch, K texts of an image, T text positions, N patches, D width of the image tower,
E width of the texts' vectors, W width of the decoder, L blocks of the tower that are read.

Differences from `transformers`: images and texts are two graphs, because labels are embedded once,
and a call of the image graph takes several of them: the tower runs once, the decoder for each.
Blocks of the tower behind the last one that is read are left out. Prompts that are images are not
exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, lower_stateless, no_section
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename
from export.layers.attention.heads import Heads
from export.layers.blocks import BlockConfig, make_encoder_blocks
from export.layers.images.vision import PixelNorm, interpolate_grid, patch_grid
from export.models.dual_encoders import clip
from export.text_encoders.declaration import TEXTS
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits, Role
from inference.bundle.manifest import Tensor as Port
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config:
    """CLIP's towers, and the decoder.

    Attributes:
        read: Numbers of the tower's blocks whose outputs are read, deepest last.
        blocks: The decoder's, one for each of them.
        conditional: Number of the decoder's block in front of which texts come in.
        has_convolutions: Whether vectors become pixels by three convolutions, else by one.
    """

    towers: clip.Config
    read: tuple[int, ...]
    blocks: BlockConfig
    conditional: int
    has_convolutions: bool

    @property
    def limits(self) -> Limits:
        """The text tower's."""
        return self.towers.limits


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another class, blocks that the tower does not have, or a grid of patches
            that is not square.
    """
    reader = ConfigReader(values)
    reader.refuse_classes_but("CLIPSegForImageSegmentation")
    towers = clip.read_config(values)
    layers, tower = towers.image.tower.layers, towers.image.tower
    read = values.get("extract_layers", [3, 6, 9])
    is_ordered = isinstance(read, list | tuple) and all(isinstance(one, int) for one in read)
    if not is_ordered or not read or any(b <= a for a, b in pairwise([-1, *read, layers])):
        raise CheckpointError(
            f"config.json: extract_layers must be blocks of the tower, 0 to {layers - 1}, in their "
            f"order, not {read!r}"
        )
    conditional = values.get("conditional_layer", 0)
    if conditional not in range(len(read)):
        raise CheckpointError(
            f"config.json: conditional_layer must be 0 to {len(read) - 1}, not {conditional!r}"
        )
    rows, columns = patch_grid(towers.image.image, towers.image.patch)
    if rows != columns:
        raise CheckpointError(f"config.json: {rows} x {columns} patches are not square")
    width, decoder_heads = (
        reader.integer("reduce_dim", 64),
        reader.integer("decoder_num_attention_heads", 4),
    )
    reader.divide(width, decoder_heads)
    blocks = BlockConfig(
        layers=len(read),
        heads=Heads(width, decoder_heads),
        mlp_width=reader.integer("decoder_intermediate_size", 2048),
        activation="relu",  # whatever `decoder_hidden_act` says, as in `transformers`
        norm_epsilon=tower.norm_epsilon,
    )
    return Config(
        towers,
        tuple(read),
        blocks,
        conditional,
        reader.flag("use_complex_transposed_convolution", False),
    )


# --------------------------------------------------------------------------------------- network


class MaskDecoder(nn.Module):
    """Outputs of the tower's blocks → a mask for each text (§3.1).

    Args:
        widths: D and E.
    """

    def __init__(self, config: Config, widths: tuple[int, int]) -> None:
        super().__init__()
        blocks, (width, embedding_width) = config.blocks, widths
        inner = blocks.width
        self.conditional = config.conditional
        self.reduce = nn.ModuleList(nn.Linear(width, inner) for _ in range(blocks.layers))
        self.scale = nn.Linear(embedding_width, inner)
        self.shift = nn.Linear(embedding_width, inner)
        self.blocks = make_encoder_blocks(blocks, is_norm_first=False)
        self.upsample = _upsample(inner, config.towers.image.patch, config.has_convolutions)

    def forward(self, read: Sequence[Tensor], texts: Tensor, grid: tuple[int, int]) -> Tensor:
        """L of (B, N + 1, D), deepest first, and (B, K, E) → logits (B, K, height, width).

        Args:
            grid: Rows and columns of patches.
        """
        x: Tensor | None = None  # (B, 1, N + 1, W); behind the texts (B, K, N + 1, W)
        for place, (block, reduce) in enumerate(zip(self.blocks, self.reduce, strict=True)):
            reduced = reduce(read[place])[:, None]
            x = reduced if x is None else x + reduced
            if place == self.conditional:
                x = self.scale(texts)[:, :, None] * x + self.shift(texts)[:, :, None]
            x = block(x.flatten(0, 1)).reshape(x.shape)
        assert x is not None
        patches = x[:, :, 1:].flatten(0, 1).transpose(1, 2)  # (B K, W, N)
        masks = self.upsample(patches.unflatten(2, grid))  # (B K, 1, height, width)
        return masks.reshape(x.shape[0], -1, *masks.shape[2:])


def _upsample(width: int, patch: tuple[int, int], has_convolutions: bool) -> nn.Module:
    """(B, W, rows, columns) → (B, 1, height, width)."""
    if not has_convolutions:
        return nn.ConvTranspose2d(width, 1, patch, stride=patch)
    part = patch[0] // 4, patch[1] // 4
    return nn.Sequential(
        nn.Conv2d(width, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, width // 2, part, stride=part),
        nn.ReLU(),
        nn.ConvTranspose2d(width // 2, 1, part, stride=part),
    )


class Segmenter(clip.VisionTransformer):
    """CLIP's image tower as far as it is read, and the decoder on top."""

    def __init__(self, config: Config) -> None:
        image = config.towers.image
        tower = replace(image.tower, layers=config.read[-1] + 1)
        super().__init__(tower, image.image, image.patch)
        del self.norm  # of CLIP's image vector
        self.read = config.read
        self.patch = image.patch
        widths = image.tower.width, config.towers.embedding_width
        self.decoder = MaskDecoder(config, widths)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels of that size from now on, not a normalised image."""
        trained, size = patch_grid(self.size, self.patch), image.shape[:2]
        grid = patch_grid(size, self.patch)
        if grid != trained:
            table = interpolate_grid(self.positions[None], trained, grid, leading=1)
            self.positions = nn.Parameter(table[0].detach())
        self.size = size
        self.pixel_norm = PixelNorm(image)

    def forward(self, pixels: Tensor, texts: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 and (B, K, E) → logits (B, K, height, width).

        The masks' size is that of whole patches.
        """
        outputs = self.layer_outputs(pixels)[1:]
        read = [outputs[number] for number in reversed(self.read)]
        return self.decoder(read, texts, patch_grid(self.size, self.patch))


class TextTower(clip.TextTower):
    """CLIP's, whose vectors are used as they are."""

    def forward(self, token_ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, T) right-padded, (B,) → (B, E), of any length."""
        return self.vector(token_ids, lengths)


class CLIPSeg(nn.Module):
    """Both graphs' networks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.image = Segmenter(config)
        self.text = TextTower(config.towers.text, config.towers.embedding_width)


def embed_section(model: CLIPSeg, checkpoint: Checkpoint) -> dict[str, Any]:
    """The gateway scales the vectors."""
    return {"is_normalized": False}


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    vision = "clip.vision_model"
    unread = range(config.read[-1] + 1, config.towers.image.tower.layers)
    table: dict[str, Entry] = {
        **clip.vision_names(vision, "image"),
        **{
            name.replace("*", str(number)): None
            for number in unread
            for name in clip.block_names(vision, "image")
        },
        f"{vision}.post_layernorm": None,
        **clip.text_names("clip.text_model"),
        "clip.text_projection": "text.projection",
        "clip.visual_projection": None,
        "clip.logit_scale": None,
        "decoder.film_mul": "image.decoder.scale",
        "decoder.film_add": "image.decoder.shift",
        "decoder.reduces.*": "image.decoder.reduce.*",
        **clip.layer_names("decoder.layers.*", "image.decoder.blocks.*"),
        "decoder.transposed_convolution": "image.decoder.upsample",
        "decoder.transposed_convolution.*": "image.decoder.upsample.*",
    }
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: CLIPSeg, image: ImageSpec | None) -> Graphs:
    """One graph for images with texts' vectors (B and K), one for texts (B and T dynamic)."""
    width = model.text.projection.out_features
    towers = clip.tower_graphs(model, image, TEXTS, width)
    texts = Port(name="texts", dtype="float32", shape=("B", "K", width), role=Role.CONDITIONS)
    rows, columns = patch_grid(model.image.size, model.image.patch)
    height, wide = rows * _pixels(model, 0), columns * _pixels(model, 1)
    masks = Port(name="masks", dtype="float32", shape=("B", "K", height, wide), role=Role.MASKS)
    given = (*towers.lowerings["image"].graph.inputs, texts)
    segmenter = lower_stateless(model.image, given, masks, traced_sizes={"K": 9})
    return replace(towers, lowerings={**towers.lowerings, "image": segmenter})


def _pixels(model: CLIPSeg, axis: int) -> int:
    """Of a mask, that one patch becomes."""
    strides = [
        layer.stride[axis]
        for layer in model.image.decoder.upsample.modules()
        if isinstance(layer, nn.ConvTranspose2d)
    ]
    return int(torch.tensor(strides).prod())


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="clipseg",
    tasks={"segment": no_section, "embed": embed_section},
    read_config=read_config,
    build=CLIPSeg,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.towers.image.image,
)
