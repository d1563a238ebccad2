"""BLIP-2: a Q-Former reads an image for a frozen language model.

Paper: Li et al. 2023, "BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders
and Large Language Models", §3.1 and figure 3 (arXiv 2301.12597): learned queries attend to each
other and, in every second block, to the patches of an image tower; what they find is projected to
the language model's width and stands in front of the text.
Checkpoints: `model_type: blip-2` of `Blip2ForConditionalGeneration`, with a language model of
`LANGUAGE_MODELS` (`Salesforce/blip2-opt-*`, `Salesforce/blip2-flan-t5-*`).

Legend: B images or sequences, N patches and the class token, Q queries, S source positions, E width
of the image tower, F width of the queries, D width of the language model.

Differences from `transformers`: an image's vectors are computed once, by `admit`; a prompt of OPT
may hold several images, or none; T5's encoder reads one image with its text; pixels come as uint8.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, Graphs, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename
from export.decoder_graphs.image_source import image_source_graphs
from export.decoder_graphs.image_tokens import image_token_graphs
from export.decoder_graphs.language_model import DecoderConfig
from export.layers.decoder import TransformerDecoder
from export.layers.images.vision import prepare_tower
from export.layers.qformer import QFormer, QFormerConfig, qformer_names, read_qformer
from export.models.captioners import blip
from export.models.decoders import gpt
from export.models.encoder_decoders import t5
from export.models.vision import vit
from export.tokenizer.prompt_images import leading_images
from inference.bundle.inputs import ImageSpec, PromptImages

# ---------------------------------------------------------------------------------------- config

LANGUAGE_MODELS: Mapping[str, Architecture] = {"opt": gpt.OPT, "t5": t5.ARCHITECTURE}
"""`model_type` of `text_config` → the language model."""
ENDS: Mapping[str, Mapping[str, int]] = {
    "opt": {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 1},
    "t5": {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0},
}
"""What `transformers` takes where `text_config` says nothing."""
_IMAGE_DEFAULTS = {
    "patch_size": 14,
    "num_hidden_layers": 39,
    "hidden_size": 1408,
    "num_attention_heads": 16,
    "intermediate_size": 6144,
    "layer_norm_eps": 1e-6,
}
_IMAGE_TOKEN = "image_token_index"
_NEW_TOKENS = 20
"""Of an answer; `transformers` reads no other length for the language model."""


@dataclass(frozen=True)
class Config(LimitedByText):
    """The three networks."""

    image: vit.Config
    qformer: QFormerConfig
    language: Architecture
    text: DecoderConfig | t5.Config
    image_token: int


def read_config(
    values: Mapping[str, Any], languages: Mapping[str, Architecture] = LANGUAGE_MODELS
) -> Config:
    """The configuration; defaults are `transformers`' own.

    Args:
        languages: As `LANGUAGE_MODELS`.

    Raises:
        CheckpointError: a model for retrieval, another language model, or a token that it lacks.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    section = reader.section("text_config")
    language = languages[section.choice("model_type", languages, "opt")]
    if "word_embed_proj_dim" in section.values:
        section.refuse_unless(word_embed_proj_dim=section.values.get("hidden_size"))
    text = language.read_config(section.given)
    token = reader.token(_IMAGE_TOKEN, text.vocabulary_size, text.vocabulary_size)
    vision = reader.section("vision_config", _IMAGE_DEFAULTS)
    vision.refuse_unless(qkv_bias=True)
    image = vision.read(vit.Config)
    return Config(image, read_qformer(reader, image.width), language, text, token)


def generation(
    checkpoint: Checkpoint, defaults: Mapping[str, Mapping[str, int]] = ENDS
) -> dict[str, Any]:
    """The generation defaults of the language model, which its section of `config.json` gives.

    `transformers` generates with the inner model, so the folder's `generation_config.json` is not
    used.
    """
    text = checkpoint.config.get("text_config") or {}
    given = {name: value for name, value in text.items() if value is not None}
    ends = defaults[given.get("model_type", "opt")]
    return {**ends, **given, "max_new_tokens": _NEW_TOKENS}


# --------------------------------------------------------------------------------------- network


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

    def __init__(self, config: Config, encoder: Any = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder or ImageEncoder(config)
        self.language = config.language.build(config.text)

    @property
    def decoder(self) -> TransformerDecoder:
        """The language model's."""
        decoder = self.language.get_submodule("decoder")
        assert isinstance(decoder, TransformerDecoder)
        return decoder

    @property
    def images(self) -> PromptImages:
        """How its texts hold images."""
        queries = self.config.qformer.queries
        return PromptImages(positions=queries, token_id=self.config.image_token, tokens=queries)


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    language = config.language.rename(config.text)
    table: Names = {
        **blip.image_names("encoder.vit"),
        **qformer_names("encoder.qformer"),
        "language_projection": "encoder.projection",
        **language.prefixed("language_model.", "language."),
    }
    tied = {f"language.{ours}": f"language.{other}" for ours, other in language.tied.items()}
    return Rename(table, tied=tied)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Blip2, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I dynamic; B, S with T5) and `step` (R, T, P, B, S dynamic; in place)."""
    image = prepare_tower(model.encoder.vit, image, model.config.image.image)
    if not isinstance(model.language, t5.T5):
        return image_token_graphs(model.encoder, model.decoder, image, model.images)
    return source_graphs(model, model.language, image)


def source_graphs(
    model: Blip2, language: t5.T5, image: ImageSpec, instruction_vocabulary: int | None = None
) -> Graphs:
    """The graphs over T5, whose encoder reads the image.

    Args:
        instruction_vocabulary: As of `image_source_graphs`.
    """
    texts = language.encoder
    return image_source_graphs(
        model.encoder,
        texts,
        model.decoder,
        image,
        model.images,
        texts.tokens.num_embeddings,
        instruction_vocabulary,
    )


def details(model: Blip2) -> Mapping[str, Any]:
    """The manifest's field for images in the decoder's prompts."""
    return {} if isinstance(model.language, t5.T5) else {"images": model.images}


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="blip-2",
    tasks={"caption": leading_images, "generate": leading_images},
    read_config=read_config,
    build=Blip2,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
    details=details,
    generation=generation,
    token_ids={_IMAGE_TOKEN: "<image>"},
)
