"""BLIP-2: a Q-Former reads an image for a frozen language model.

Paper: Li et al. 2023, "BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders
and Large Language Models", §3.1 and figure 3 (arXiv 2301.12597): learned queries attend to each
other and, in every second block, to the patches of an image tower; what they find is projected to
the language model's width and stands in front of the text.
Checkpoints: `model_type: blip-2` of `Blip2ForConditionalGeneration`, with a language model of
`LANGUAGE_MODELS` (`Salesforce/blip2-opt-*`).

Legend: B images, N patches and the class token, Q queries, E width of the image tower, F width of
the queries, D width of the language model.

Differences from `transformers`: an image's vectors are computed once, by `admit`; the prompt may
hold several images, or none; pixels come as uint8.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename
from export.decoder_graphs.image_tokens import image_token_graphs
from export.decoder_graphs.language_model import DecoderConfig
from export.layers.attention import CrossAttention, SelfAttention
from export.layers.block_config import BlockConfig, read_blocks
from export.layers.blocks import EncoderBlock
from export.layers.decoder import TransformerDecoder
from export.layers.mlp import MLP
from export.layers.vision import check_recipe
from export.models import blip, opt, vit
from export.tokenizer.prompt_images import leading_images
from export.twin import TINY_IMAGE, tiny_twin
from inference.bundle.manifest import ImageSpec, Limits, PromptImages
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

LANGUAGE_MODELS: Mapping[str, Architecture] = {"opt": opt.ARCHITECTURE}
"""`model_type` of `text_config` → the language model."""
_IMAGE_TOKEN = "image_token_index"
_NEW_TOKENS = 20
"""Of an answer; `transformers` reads no other length for the language model."""


@dataclass(frozen=True, kw_only=True)
class QFormerConfig(BlockConfig):
    """The Q-Former.

    Attributes:
        queries: Q.
        image_width: E.
        cross_every: The first block, and every so many behind it, attend to the image.
    """

    queries: int
    image_width: int
    cross_every: int


@dataclass(frozen=True)
class Config:
    """The three networks."""

    image: vit.Config
    qformer: QFormerConfig
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def limits(self) -> Limits:
        """The language model's; each image takes Q of the positions."""
        return self.text.limits


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a model for retrieval, another language model, or a token that it lacks.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    section = reader.section("text_config")
    language = LANGUAGE_MODELS[section.choice("model_type", LANGUAGE_MODELS, "opt")]
    given = {name: value for name, value in section.values.items() if value is not None}
    section.refuse_unless(word_embed_proj_dim=section.values.get("hidden_size"))
    text = language.read_config(given)
    token = reader.index(_IMAGE_TOKEN, text.vocabulary_size)
    if token >= text.vocabulary_size:
        raise CheckpointError(
            f"{reader.place}: {_IMAGE_TOKEN} = {token} is outside the vocabulary of "
            f"{text.vocabulary_size} tokens"
        )
    image = read_image(reader.section("vision_config"))
    return Config(image, read_qformer(reader, image.width), language, text, token)


def read_image(reader: ConfigReader) -> vit.Config:
    """The image tower's section."""
    reader.refuse_unless(num_channels=3, qkv_bias=True)
    return vit.Config(
        image=reader.pair("image_size", 224),
        patch=reader.pair("patch_size", 14),
        **read_blocks(reader, layers=39, width=1408, heads=16, mlp_width=6144, norm_epsilon=1e-6),
    )


def read_qformer(reader: ConfigReader, image_width: int) -> QFormerConfig:
    """The Q-Former's section; `transformers` overwrites `encoder_hidden_size`."""
    section = reader.section("qformer_config")
    section.refuse_unless(position_embedding_type="absolute")
    return QFormerConfig(
        queries=reader.integer("num_query_tokens", 32),
        image_width=image_width,
        cross_every=section.integer("cross_attention_frequency", 2),
        **read_blocks(section),
    )


def generation(checkpoint: Checkpoint) -> dict[str, Any]:
    """The generation defaults of the language model, which its section of `config.json` gives.

    `transformers` generates with the inner model, so the folder's `generation_config.json` is not
    used.
    """
    text = checkpoint.config.get("text_config") or {}
    given = {name: value for name, value in text.items() if value is not None}
    return {**_ENDS, **given, "max_new_tokens": _NEW_TOKENS}


_ENDS = {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1}
"""Of OPT, where its section says nothing."""

# ---------------------------------------------------------------------------------------- blocks


class QueryBlock(EncoderBlock):
    """Self-attention, in some blocks attention to the image, and MLP; norms behind."""

    def __init__(self, config: QFormerConfig, *, reads_image: bool) -> None:
        norm = partial(nn.LayerNorm, config.width, eps=config.norm_epsilon)
        mlp = MLP(config.width, config.mlp_width, config.activation)
        super().__init__(SelfAttention(config.heads), mlp, norm, is_norm_first=False)
        self.reads_image = reads_image
        if reads_image:
            self.cross = CrossAttention(config.heads, config.image_width)
            self.cross_norm = norm()

    def read(self, x: Tensor, patches: Tensor) -> Tensor:
        """(B, Q, F), (B, N, E) → (B, Q, F)."""
        x = self.attention_norm(x + self.attention(x))
        if self.reads_image:
            x = self.cross_norm(x + self.cross(x, self.cross.project_kv(patches)))
        return self.mlp_norm(x + self.mlp(x))


# --------------------------------------------------------------------------------------- network


class QFormer(nn.Module):
    """Queries, and what they find in an image."""

    def __init__(self, config: QFormerConfig) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.zeros(1, config.queries, config.width))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)
        self.blocks = nn.ModuleList(
            QueryBlock(config, reads_image=layer % config.cross_every == 0)
            for layer in range(config.layers)
        )

    def forward(self, patches: Tensor) -> Tensor:
        """(B, N, E) → (B, Q, F)."""
        x = self.norm(self.queries.expand(patches.shape[0], -1, -1))
        for block in self.blocks:
            assert isinstance(block, QueryBlock)
            x = block.read(x, patches)
        return x


class ImageEncoder(nn.Module):
    """Image tower, Q-Former and projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = vit.ViT(config.image)
        self.qformer = QFormer(config.qformer)
        self.projection = nn.Linear(config.qformer.width, config.text.width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, Q, D)."""
        return self.projection(self.qformer(self.vit(pixels)))


class Blip2(nn.Module):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = ImageEncoder(config)
        decoder = config.language.build(config.text).get_submodule("decoder")
        assert isinstance(decoder, TransformerDecoder)
        self.decoder = decoder

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        queries = self.config.qformer.queries
        return PromptImages(positions=queries, token_id=self.config.image_token, tokens=queries)


# ----------------------------------------------------------------------------------------- names


def qformer_names() -> Names:
    """The table of the Q-Former's blocks."""
    theirs, ours = "qformer.encoder.layer.*", "encoder.qformer.blocks.*"
    table: Names = {
        "query_tokens": "encoder.qformer.queries",
        "qformer.layernorm": "encoder.qformer.norm",
        f"{theirs}.intermediate_query.dense": f"{ours}.mlp.up",
        f"{theirs}.output_query.dense": f"{ours}.mlp.down",
        f"{theirs}.output_query.LayerNorm": f"{ours}.mlp_norm",
    }
    for name, own in (("attention", "attention"), ("crossattention", "cross")):
        table |= {
            f"{theirs}.{name}.attention.{part}": f"{ours}.{own}.{part}"
            for part in ("query", "key", "value")
        }
        table[f"{theirs}.{name}.output.dense"] = f"{ours}.{own}.out"
        table[f"{theirs}.{name}.output.LayerNorm"] = f"{ours}.{own}_norm"
    return table


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    language = config.language.rename(config.text).prefixed("language_model.", "")
    projection: Names = {"language_projection": "encoder.projection"}
    return Rename(blip.image_names("encoder.vit") | qformer_names() | projection | language)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Blip2, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I dynamic) and `step` (R, T, P, B, S dynamic; in place)."""
    assert image is not None
    check_recipe(image, model.config.image.image)
    model.encoder.vit.prepare(image)
    return image_token_graphs(model.encoder, model.decoder, image, model.images)


# ------------------------------------------------------------------------------------------ twin

_TINY_IMAGE = TINY_IMAGE | {"image_size": 16, "layer_norm_eps": 1e-3}
_TINY_QFORMER = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 28,
    "layer_norm_eps": 1e-3,
    "vocab_size": 64,
}
_TINY_TEXT = opt.TWIN.configs["plain"] | {
    "model_type": "opt",
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "qformer_config": _TINY_QFORMER,
    "num_query_tokens": 4,
    "image_token_index": 61,
}
TWIN = tiny_twin(
    "transformers:Blip2ForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "word_embed_proj_dim": 30, "num_attention_heads": 3},
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "num_attention_heads": 3},
            "qformer_config": _TINY_QFORMER | {"hidden_size": 22},
        },
        "every block reads the image": {
            "qformer_config": _TINY_QFORMER
            | {"cross_attention_frequency": 1, "hidden_act": "relu", "num_hidden_layers": 2},
            "vision_config": _TINY_IMAGE | {"hidden_act": "gelu_new", "image_size": 32},
            "num_query_tokens": 2,
        },
        "norms behind": {
            "text_config": _TINY_TEXT | {"do_layer_norm_before": False},
            "qformer_config": _TINY_QFORMER | {"num_attention_heads": 5},
        },
    },
)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="blip-2",
    tasks={"caption": leading_images, "generate": leading_images},
    read_config=read_config,
    build=Blip2,
    rename=rename,
    graphs=graphs,
    twin=TWIN,
    image_size=lambda config: config.image.image,
    details=lambda network: {"images": network.images},
    generation=generation,
    token_ids={_IMAGE_TOKEN: "<image>"},
)
