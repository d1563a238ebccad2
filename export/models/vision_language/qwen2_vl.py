"""Qwen2-VL: a language model with positions in three axes, and images of any size.

Paper: Wang et al. 2024, "Qwen2-VL: Enhancing Vision-Language Model's Perception of the World at Any
Resolution", §2.1 (arXiv 2409.12191): an image keeps its size, to whole squares of two by two
patches; the tower rotates queries and keys by a patch's row and column, and two linear layers make
one vector of each square. The language model is Qwen2's, with rotary positions of three axes.
Checkpoints: `model_type: qwen2_vl` (`Qwen/Qwen2-VL-2B-Instruct`, `Qwen/Qwen2-VL-7B-Instruct`).

Legend: B images of one size, M rows and columns of a square's patches, N patches, L vectors of an
image (N / M²), P pixels of a patch's side, H heads, K width of a head, E width of the tower,
D width.

Differences from `transformers`: images only. An image, there the frames of a short video, is one
frame here, whose weights are summed; an image's vectors are computed once, by `admit`; pixels come
as uint8. A prompt may end with an image, and images may be neighbours: there, a cache continues
each axis by itself, and neighbours are taken for one image.

Decision D104.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

from export.architecture import Graphs
from export.config.weight_names import Names, Rename, WeightLayout
from export.decoder_graphs.image_language_model import ImageLanguageModel, image_language_model
from export.decoder_graphs.image_tokens import image_token_graphs
from export.layers.activation import activation
from export.layers.attention.axial_attention import PatchAttention, PatchBlock, axial_angles
from export.layers.images.vision import PixelNorm, check_recipe
from export.layers.mlp import MLP
from export.models.decoders import llama, qwen2
from export.models.vision_language.qwen2_vl_config import EPSILON, Config, TowerConfig, read_config
from inference.bundle.inputs import ImageSpec, PromptImages

# --------------------------------------------------------------------------------------- network


class SquareEmbedding(nn.Module):
    """An image as vectors of its patches, square by square."""

    packed: Tensor

    def __init__(self, config: TowerConfig) -> None:
        super().__init__()
        self.patch, self.merge = config.patch, config.merge
        shape = (config.blocks.width, 3, config.frames, config.patch, config.patch)
        self.weight = nn.Parameter(torch.zeros(shape))

    def forward(self, image: Tensor) -> Tensor:
        """(B, 3, height, width) → (B, N, E): the patches of a square follow each other."""
        edge = self.patch * self.merge
        rows, columns = image.shape[2] // edge, image.shape[3] // edge
        x = image[:, :, : rows * edge, : columns * edge]
        x = x.reshape(-1, 3, rows, self.merge, self.patch, columns, self.merge, self.patch)
        x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)  # (B, rows, columns, M, M, 3, P, P)
        x = x.reshape(-1, rows * columns * self.merge**2, 3 * self.patch**2)
        return functional.linear(x, self.packed if is_in_onnx_export() else self._summed())

    def pack(self) -> None:
        """Stores the weights of one frame; called once before export."""
        self.register_buffer("packed", self._summed().detach().clone(), persistent=False)

    def _summed(self) -> Tensor:
        """(E, 3·P·P): what all frames together are multiplied with, which are alike."""
        return self.weight.sum(dim=2).flatten(1)


class ImageEncoder(nn.Module):
    """Squares of patches, each of them one vector of the language model."""

    def __init__(self, config: TowerConfig, width: int) -> None:
        super().__init__()
        self.config = config
        blocks, squared = config.blocks, config.blocks.width * config.merge**2
        self.patches = SquareEmbedding(config)
        self.blocks = nn.ModuleList(self.make_block() for _ in range(blocks.layers))
        self.norm = self.make_norm()
        self.first = nn.Linear(squared, squared)
        self.activation = activation("gelu")
        self.second = nn.Linear(squared, width)
        self.pixel_norm: nn.Module = nn.Identity()

    def make_norm(self) -> nn.Module:
        """A norm of the tower."""
        return nn.LayerNorm(self.config.blocks.width, eps=EPSILON)

    def make_block(self) -> PatchBlock:
        """A block of the tower."""
        blocks = self.config.blocks
        mlp = MLP(blocks.width, blocks.mlp_width, blocks.activation)
        return PatchBlock(PatchAttention(blocks.heads), mlp, self.make_norm)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8, of whole squares → (B, L, D)."""
        edge = self.config.grid.edge
        x = self.patches(self.pixel_norm(pixels))
        x = self.run_blocks(x, pixels.shape[1] // edge, pixels.shape[2] // edge)
        squares = self.norm(x).unflatten(1, (-1, self.config.merge**2)).flatten(2)  # (B, L, M²·E)
        return self.second(self.activation(self.first(squares)))

    def run_blocks(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """(B, N, E) → (B, N, E), of an image of rows and columns of squares."""
        config = self.config
        angles = axial_angles(rows, columns, config.merge, config.blocks.heads.width, config.base)
        for block in self.blocks:
            x = block(x, angles)
        return x


class Qwen2VL(ImageLanguageModel):
    """Image encoder and language model."""

    encoder_type: type[ImageEncoder] = ImageEncoder

    def __init__(self, config: Config) -> None:
        encoder = self.encoder_type(config.tower, config.text.width)
        super().__init__(config, encoder, llama.Llama(config.text))
        self.video_token = config.video_token

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        grid, token = self.config.tower.grid, self.config.image_token
        tokens = grid.tokens(*self.config.image)
        return PromptImages(positions=tokens, token_id=token, tokens=tokens, grid=grid)


# ----------------------------------------------------------------------------------------- names

_BLOCK: Names = {
    "norm1": "attention_norm",
    "norm2": "mlp_norm",
    "attn.proj": "attention.out",
    "mlp.fc1": "mlp.up",
    "mlp.fc2": "mlp.down",
}


def rename(config: Config, block: Names = _BLOCK) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table: Names = {}
    own = "encoder.blocks.*"
    blocks: Names = {f"blocks.*.{name}": f"{own}.{entry}" for name, entry in block.items()}
    packed = tuple(f"{own}.attention.{part}" for part in ("query", "key", "value"))
    blocks["blocks.*.attn.qkv"] = WeightLayout(packed)
    for prefix in ("visual", "model.visual"):
        table |= {f"{prefix}.{name}": entry for name, entry in blocks.items()}
        table[f"{prefix}.patch_embed.proj"] = "encoder.patches"
        table[f"{prefix}.merger.ln_q"] = "encoder.norm"
        table[f"{prefix}.merger.mlp.0"] = "encoder.first"
        table[f"{prefix}.merger.mlp.2"] = "encoder.second"
    for name, entry in qwen2.ARCHITECTURE.rename(config.text).table.items():
        table[name] = entry
        table[name.replace("model.", "model.language_model.", 1)] = entry
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Qwen2VL, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, height, width dynamic) and `step` (R, T, P, B, S dynamic; in place).

    Raises:
        CheckpointError: the recipe gives other squares than the configuration.
    """
    assert image is not None
    check_recipe(image, model.config.image)
    model.encoder.pixel_norm = PixelNorm(image)
    return image_token_graphs(model.encoder, model.decoder, image, model.images)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = image_language_model(
    "qwen2_vl",
    read_config,
    Qwen2VL,
    rename,
    image_size=lambda config: config.image,
    ends=llama.ENDS,
    graphs=graphs,
)
