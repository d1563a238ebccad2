"""PaliGemma, Gemma 3 and T5Gemma 2: SigLIP's patches before or between the words that Gemma reads.

Reports: Beyer et al. 2024, "PaliGemma: A versatile 3B VLM for transfer", §3.1 and figure 2 (arXiv
2407.07726): one linear layer projects the patches; image and prompt attend to each other in both
directions, the answer is causal. Steiner et al. 2024, "PaliGemma 2" (arXiv 2412.03555): the same
over Gemma 2. Gemma Team 2025, "Gemma 3 Technical Report", §2.1 (arXiv 2503.19786): averages of
k x k neighbouring patches, a norm and one linear layer make L vectors of an image. The tokens of an
image attend to each other in both directions, everything else is causal; in layers with a window an
image token attends to later ones of its image, and to earlier ones as far as the window. Pan and
scan (§2.1): parts of a long image follow it as images of their own, where the image recipe says so.
T5Gemma 2 (arXiv 2512.14856, `encoder_decoders/t5gemma.py`) has Gemma 3's images in its encoder,
where their tokens attend as words do.
Checkpoints: `model_type: paligemma` (`google/paligemma-*`, `google/paligemma2-*`), `gemma3`
(`google/gemma-3-4b-it`, `-12b-`, `-27b-`, `-pt`) and `t5gemma2` (`google/t5gemma-2-*`).

Legend: B images, N patches, n patches in a row, E width of the image tower, L vectors of an image,
D width.

Differences from `transformers`: an image's vectors are computed once, by `admit`; pixels come as
uint8. PaliGemma's prompt may hold no image; positions are counted from 0 and not from 1, which
rotations do not see. Gemma 3's image tokens that a prompt repeats without images are ordinary ones;
the image recipe decides on pan and scan, where its processor asks each call and ignores the recipe.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Names, Rename, WeightLayout
from export.decoder_graphs.image_source import image_source_graphs
from export.decoder_graphs.language_model import (
    DecoderConfig,
    ImageLanguageModel,
    image_language_graphs,
    image_language_model,
    language_names,
)
from export.layers.blocks import BlockConfig, RMSNorm
from export.layers.images.vision import patch_count, patch_grid, prepare_tower
from export.models.decoders import gemma, llama
from export.models.dual_encoders import siglip
from export.models.encoder_decoders import t5gemma
from export.tokenizer.prompt_images import check_tokens, image_tokens, prefix_images, text_of_token
from inference.bundle.inputs import ImageSpec, PromptImages
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 257152,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}
"""What `transformers` takes for Gemma 1 where there is no `text_config`, as in published files."""


LANGUAGE_MODELS: Mapping[str, Architecture] = {"gemma": gemma.GEMMA, "gemma2": gemma.GEMMA2}
"""`model_type` of `text_config` → the decoder."""


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByText):
    """Both halves."""

    tower: BlockConfig = key()
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 14)
    language: Architecture
    text: DecoderConfig
    image_token: int

    @property
    def tokens(self) -> int:
        """N."""
        return patch_count(self.image, self.patch)


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model, causal prompts, or a token that it lacks.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config", siglip.DEFAULTS)
    vision.refuse_unless(num_channels=3, model_type="siglip_vision_model")
    section = reader.section("text_config")
    kind = section.choice("model_type", LANGUAGE_MODELS, "gemma")
    given = section.given
    if given.pop("use_bidirectional_attention", True) is not True:
        section.refuse_unless(use_bidirectional_attention=True)
    language = LANGUAGE_MODELS[kind]
    given |= {"model_type": kind, "tie_word_embeddings": reader.flag("tie_word_embeddings", True)}
    text = language.read_config({**_DEFAULTS, **given})
    reader.refuse_unless(projection_dim=text.width)
    return vision.read(
        Config,
        language=language,
        text=replace(text, layers=tuple(replace(each, is_prefix_lm=True) for each in text.layers)),
        image_token=reader.token("image_token_index", 256000, text.vocabulary_size),
    )


# --------------------------------------------------------------------------------------- network


class ImageEncoder(nn.Module):
    """Patches of SigLIP's tower, projected."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.vit = siglip.VisionTransformer(config.tower, config.image, config.patch)
        self.projection = nn.Linear(config.tower.width, config.text.width)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        return self.projection(self.vit.norm(self.vit.layer_outputs(pixels)[-1]))


class PaliGemma(ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, ImageEncoder(config))


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours: those of published files, and of newer versions."""
    table = language_names(config.language.rename(config.text).table)
    for prefix in ("", "model."):
        table |= _image_names(prefix, "encoder", {"linear": "encoder.projection"})
    return Rename(table)


def _image_names(
    prefix: str, encoder: str, projector: Names, unused: Sequence[str] = ()
) -> dict[str, Entry]:
    """Names of an image encoder, with a prefix in front of theirs.

    Args:
        projector: Names of what is behind the tower.
        unused: Names of the tower's that nothing reads.
    """
    table: dict[str, Entry] = {}
    for place in ("vision_tower.vision_model", "vision_tower"):
        table |= siglip.vision_names(f"{prefix}{place}", f"{encoder}.vit")
        table |= {f"{prefix}{place}.head.{name}": None for name in unused}
    return table | {
        f"{prefix}multi_modal_projector.{name}": entry for name, entry in projector.items()
    }


# ----------------------------------------------------------------------------------- declaration

PALIGEMMA = image_language_model(
    "paligemma",
    read_config,
    PaliGemma,
    rename,
    image_size=lambda config: config.image,
    ends=gemma.ENDS,
    tasks={"caption": prefix_images, "generate": prefix_images},
)


# ------------------------------------------------------------------------------------------ Gemma 3

_GEMMA3_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
}
"""What `transformers` takes where `text_config` says nothing, as in published files."""


@dataclass(frozen=True, kw_only=True)
class Gemma3Config(LimitedByText):
    """Both halves.

    Attributes:
        image: Side of an image in pixels.
        patch: Side of a patch in pixels.
        tokens: L.
        image_token: Stands for one vector of an image.
        begin: Stands in front of an image's tokens, and for an image in a text.
        end: Stands behind them.
    """

    tower: BlockConfig = key()
    image: int = key("image_size", 224)
    patch: int = key("patch_size", 16)
    tokens: int
    text: llama.Config
    image_token: int
    begin: int
    end: int

    @property
    def side(self) -> int:
        """Patches in a row: n."""
        return patch_grid((self.image, self.image), (self.patch, self.patch))[0]

    @property
    def pool(self) -> int:
        """Rows, and columns, of the patches that one vector averages: k."""
        return max(1, self.side // isqrt(self.tokens))


def read_gemma3(values: Mapping[str, Any]) -> Gemma3Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a token that the vocabulary lacks, or patches that make another number of
            vectors than `mm_tokens_per_image`.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    section = reader.section("text_config")
    section.refuse_unless(model_type="gemma3_text", final_logit_softcapping=None)
    is_tied = reader.flag("tie_word_embeddings", True)
    text = gemma.read_gemma3({**_GEMMA3_DEFAULTS, **section.given, "tie_word_embeddings": is_tied})
    token = reader.token("image_token_index", 262144, text.vocabulary_size)
    return read_pooled(reader, text, token)


def read_pooled(reader: ConfigReader, text: llama.Config, image_token: int) -> Gemma3Config:
    """What a configuration says of its images, which a network of `text` reads."""
    vision = reader.section("vision_config", siglip.DEFAULTS)
    vision.refuse_unless(num_channels=3, model_type="siglip_vision_model")
    config = vision.read(
        Gemma3Config,
        tokens=reader.integer("mm_tokens_per_image", 256),
        text=text,
        image_token=image_token,
        begin=reader.token("boi_token_index", 255999, text.vocabulary_size),
        end=reader.token("eoi_token_index", 256000, text.vocabulary_size),
    )
    side, made = config.side, (config.side // config.pool) ** 2
    if config.tokens != made:
        raise CheckpointError(
            f"{reader.place}: mm_tokens_per_image = {config.tokens}, but the {side} x {side} "
            f"patches of vision_config make {made}"
        )
    return config


class PooledEncoder(nn.Module):
    """SigLIP's tower, averages of its patches, a norm and the projection."""

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__()
        self.side, self.pool = config.side, config.pool
        size = (config.image, config.image)
        self.vit = siglip.VisionTransformer(config.tower, size, (config.patch, config.patch))
        self.norm = RMSNorm(config.tower.width, config.tower.norm_epsilon, offset=1.0)
        self.projection = nn.Linear(config.tower.width, config.text.width, bias=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, D)."""
        x = self.vit.norm(self.vit.layer_outputs(pixels)[-1])
        grid = x.transpose(1, 2).unflatten(2, (self.side, self.side))  # (B, E, n, n)
        pooled = functional.avg_pool2d(grid, self.pool).flatten(2).transpose(1, 2)  # (B, L, E)
        return self.projection(self.norm(pooled))


class PooledImages(nn.Module):
    """How texts hold such images."""

    config: Gemma3Config

    @property
    def place_id(self) -> int:
        """The token that stands for an image in a text."""
        return self.config.begin

    def tile_texts(self, checkpoint: Checkpoint, place: str) -> dict[str, str]:
        """What the checkpoint's processor writes for an image, as fields of `TileTexts`.

        Raises:
            CheckpointError: the tokenizer lacks one of the tokens, or see `check_tokens`.
        """
        check_tokens(checkpoint, self.config.tokens, "image_seq_length", 256, "an image")
        vector, end = (
            text_of_token(checkpoint, token) for token in (self.config.image_token, self.config.end)
        )
        image = f"\n\n{place}{vector}{end}\n\n"
        return {
            "single": image,
            "first": f"Here is the original image {image} and here are some crops to help you see "
            "better ",
            "tile": image,
            "between": " ",
        }


class Gemma3(PooledImages, ImageLanguageModel):
    """Image encoder and language model."""

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__(config, PooledEncoder(config), llama.Llama(config.text))


def pooled_names(prefix: str, encoder: str) -> dict[str, Entry]:
    """Names of a `PooledEncoder`, as of `_image_names`."""
    projection = WeightLayout((f"{encoder}.projection.weight",), is_transposed=True)
    projector: Names = {
        "mm_soft_emb_norm": f"{encoder}.norm",
        "mm_input_projection_weight": projection,
    }
    return _image_names(prefix, encoder, projector, siglip.HEAD)


def rename_gemma3(config: Gemma3Config) -> Rename:
    """`transformers`' names → ours."""
    table = language_names(gemma.GEMMA3.rename(config.text).table)
    for prefix in ("", "model."):
        table |= pooled_names(prefix, "encoder")
    return Rename(table)


GEMMA3 = image_language_model(
    "gemma3",
    read_gemma3,
    Gemma3,
    rename_gemma3,
    image_size=lambda config: (config.image, config.image),
    ends=gemma.ENDS,
    graphs=partial(image_language_graphs, has_blocks=True),
)


# ---------------------------------------------------------------------------------------- T5Gemma 2


@dataclass(frozen=True)
class T5Gemma2Config(LimitedByText):
    """The two stacks, and how images are read."""

    text: t5gemma.Config2
    images: Gemma3Config


def read_t5gemma2(values: Mapping[str, Any]) -> T5Gemma2Config:
    """The configuration, which may be refused as of `t5gemma.read_t5gemma2` and `read_pooled`."""
    reader, text = ConfigReader(values), t5gemma.read_t5gemma2(values)
    image = reader.token("image_token_index", 256_001, text.encoder.vocabulary_size)
    return T5Gemma2Config(text, read_pooled(reader.section("encoder"), text.encoder, image))


class T5Gemma2(PooledImages, t5gemma.T5Gemma2):
    """The two stacks and the image encoder."""

    def __init__(self, config: T5Gemma2Config) -> None:
        super().__init__(config.text)
        self.config = config.images
        self.image_encoder = PooledEncoder(config.images)

    @property
    def images(self) -> PromptImages:
        """How its sources hold images."""
        count = self.config.tokens
        return PromptImages(positions=count, token_id=self.config.image_token, tokens=count)


def rename_t5gemma2(config: T5Gemma2Config) -> Rename:
    """`transformers`' names → ours."""
    names = t5gemma.rename_t5gemma2(config.text).table
    return Rename(names | pooled_names("model.encoder.", "image_encoder"))


def t5gemma2_graphs(model: T5Gemma2, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, S dynamic) and `step` (R, T, P, B, S dynamic; in place)."""
    image, texts = prepare_tower(model.image_encoder.vit, image), model.encoder
    size = texts.tokens.num_embeddings
    return image_source_graphs(
        model.image_encoder, texts, model.decoder, image, model.images, size, has_many=True
    )


T5GEMMA2 = replace(
    t5gemma.ARCHITECTURE,
    name="t5gemma2",
    tasks={"generate": image_tokens, "caption": image_tokens},
    read_config=read_t5gemma2,
    build=T5Gemma2,
    rename=rename_t5gemma2,
    graphs=t5gemma2_graphs,
    image_size=lambda config: (config.images.image, config.images.image),
)
