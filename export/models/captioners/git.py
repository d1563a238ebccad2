"""GIT: a language model that reads an image in front of its text.

Paper: Wang et al. 2022, "GIT: A Generative Image-to-text Transformer for Vision and Language", §3.1
(arXiv 2205.14100): image tokens attend to each other, text tokens to the image and to earlier text.
Checkpoints: `model_type: git` (`microsoft/git-*`), images and not videos.

Legend: B batch, N image positions, R rows, T new positions, P past positions, D width,
V vocabulary.

Differences from `transformers`: image tokens are read once, by `admit`, and become the first
positions of the cache; pixels come as uint8 and are normalised in the graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, no_section
from export.config.config_reader import ConfigReader
from export.config.weight_names import Entry, Rename, bert_block
from export.decoder_graphs.source import image_source
from export.decoder_graphs.transformer import prefix_graphs
from export.layers.attention.attention import CachedAttention
from export.layers.block_config import BlockConfig, read_blocks
from export.layers.blocks import DecoderBlock
from export.layers.decoder import TransformerDecoder, output_table, tied_logits
from export.layers.images.image_input import prepare_tower
from export.layers.images.vision import patch_count
from export.layers.mlp import MLP
from export.models.dual_encoders import clip
from export.twin import TINY_IMAGE, tiny_twin
from inference.bundle.manifest import ImageSpec, Limits

# ---------------------------------------------------------------------------------------- config


@dataclass(frozen=True)
class Config(BlockConfig):
    """The image tower and the text decoder."""

    image_tower: BlockConfig
    image: tuple[int, int]
    patch: tuple[int, int]
    vocabulary_size: int
    positions: int
    """Text positions; image tokens take none of them."""
    has_tied_output: bool

    @property
    def image_positions(self) -> int:
        """N: patches and the class token."""
        return patch_count(self.image, self.patch) + 1

    @property
    def limits(self) -> Limits:
        """The position table bounds prompt and caption together."""
        return Limits(max_total_tokens=self.positions)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values)
    reader.refuse_unless(num_image_with_embedding=None, position_embedding_type="absolute")
    image = reader.section("vision_config")
    image.refuse_unless(num_channels=3)
    return Config(
        image_tower=clip.read_tower(image, width=768, mlp_width=3072, heads=12),
        image=image.pair("image_size", 224),
        patch=image.pair("patch_size", 16),
        vocabulary_size=reader.integer("vocab_size", 30522),
        positions=reader.integer("max_position_embeddings", 1024),
        **read_blocks(reader, layers=6),
        has_tied_output=reader.flag("tie_word_embeddings", False),
    )


# ---------------------------------------------------------------------------------------- blocks


def make_block(config: Config) -> DecoderBlock:
    """Causal self-attention and MLP, norms behind."""
    return DecoderBlock(
        CachedAttention(config.heads),
        MLP(config.width, config.mlp_width, config.activation),
        partial(nn.LayerNorm, config.width, eps=config.norm_epsilon),
        is_norm_first=False,
    )


# --------------------------------------------------------------------------------------- network


class ImageTower(nn.Module):
    """CLIP's ViT; every vector of it, brought to the decoder's width."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        tower = config.image_tower
        self.vit = clip.VisionTransformer(tower, config.image, config.patch)
        self.projection = nn.Sequential(
            nn.Linear(tower.width, config.width),
            nn.LayerNorm(config.width, eps=tower.norm_epsilon),
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        return self.projection(self.vit.norm(self.vit.hidden(pixels)))


class TextDecoder(TransformerDecoder):
    """Tokens behind an image's positions → scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.vocabulary_size = config.vocabulary_size
        self.prefix = config.image_positions
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.embedding_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.blocks = nn.ModuleList(make_block(config) for _ in range(config.layers))
        self.output = output_table(self.tokens, is_tied=config.has_tied_output)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary_size))

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D): token and its position in the text, normalised."""
        places = (positions - self.prefix).clamp(max=self.positions.num_embeddings - 1)
        return self.embedding_norm(self.tokens(tokens) + self.positions(places))

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        return tied_logits(hidden, self.output, self.output_bias)


class GIT(nn.Module):
    """Image tower and text decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.encoder = ImageTower(config)
        self.decoder = TextDecoder(config)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    table: dict[str, Entry] = {
        **clip.vision_names("git.image_encoder.vision_model", "encoder.vit"),
        "git.visual_projection.visual_projection.*": "encoder.projection.*",
        "git.embeddings.word_embeddings": "decoder.tokens",
        "git.embeddings.position_embeddings": "decoder.positions",
        "git.embeddings.position_ids": None,
        "git.embeddings.LayerNorm": "decoder.embedding_norm",
        **bert_block("git.encoder.layer.*", "decoder.blocks.*"),
        "output.weight": "decoder.tokens.weight" if config.has_tied_output else "decoder.output",
        "output.bias": "decoder.output_bias",
    }
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: GIT, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic) and `step` (R, T, P dynamic; in place)."""
    image = prepare_tower(model.encoder.vit, image)
    source = image_source(image, model.decoder.prefix)
    return prefix_graphs(model.encoder, model.decoder, source)


# ------------------------------------------------------------------------------------------ twin

_TINY_IMAGE = TINY_IMAGE | {"num_hidden_layers": 1, "layer_norm_eps": 1e-3}
_TINY = {
    "vocab_size": 64,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 44,
    "max_position_embeddings": 32,
    "layer_norm_eps": 1e-3,
    "bos_token_id": 62,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "vision_config": _TINY_IMAGE,
}
TWIN = tiny_twin(
    "transformers:GitForCausalLM",
    _TINY,
    {
        "plain": {"hidden_size": 24, "num_hidden_layers": 1},
        "odd": {},
        "tied": {"tie_word_embeddings": True, "hidden_act": "relu", "num_hidden_layers": 1}
        | {"vision_config": _TINY_IMAGE | {"hidden_act": "gelu", "num_attention_heads": 3}},
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="git",
    tasks={"caption": no_section},
    read_config=read_config,
    build=GIT,
    rename=rename,
    graphs=graphs,
    twin=TWIN,
    image_size=lambda config: config.image,
)
