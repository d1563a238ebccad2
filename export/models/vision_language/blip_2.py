"""BLIP-2 and InstructBLIP: a Q-Former reads an image for a frozen language model.

Papers: Li et al. 2023, "BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image
Encoders and Large Language Models", §3.1 and figure 3 (arXiv 2301.12597): learned queries attend to
each other and, in every second block, to the patches of an image tower; what they find is projected
to the language model's width and stands in front of the text. Dai et al. 2023, "InstructBLIP:
Towards General-purpose Vision-Language Models with Instruction Tuning", §2.3 and figure 3 (arXiv
2305.06500): queries and an instruction's words attend to each other, queries alone to the image, so
that what is found in it depends on what is asked.
Checkpoints: `model_type: blip-2` of `Blip2ForConditionalGeneration`, with a language model of
`LANGUAGE_MODELS` (`Salesforce/blip2-opt-*`, `Salesforce/blip2-flan-t5-*`), and `instructblip` with
one of `INSTRUCTED_MODELS` (`Salesforce/instructblip-vicuna-7b`, `-flan-t5-xl`), which has a
tokenizer of its own for the Q-Former.

Legend: B images or sequences, N patches and the class token, Q queries, S source positions, T words
of an instruction, E width of the image tower, F width of the queries, D width of the language
model.

Differences from `transformers`: an image's vectors are computed once for an instruction, by
`admit`; a prompt of a decoder may hold several images, or none; T5's encoder reads one image with
its text, and the instruction in front of both; pixels come as uint8.

Decision D104.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from export.architecture import Architecture, Graphs, LimitedByText
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Names, Rename
from export.decoder_graphs.image_source import image_source_graphs
from export.decoder_graphs.image_tokens import image_token_graphs
from export.decoder_graphs.language_model import DecoderConfig
from export.layers.blocks import MLP
from export.layers.decoder import TransformerDecoder
from export.layers.images.vision import prepare_tower
from export.layers.qformer import QFormer, QFormerConfig, QueryBlock, qformer_names, read_qformer
from export.models.captioners import blip
from export.models.decoders import gpt, llama
from export.models.encoder_decoders import t5
from export.models.vision import vit
from export.tokenizer.prompt_images import leading_images
from inference.bundle.inputs import ImageSpec, PromptImages
from inference.bundle.manifest import Limits

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

    def __init__(self, config: Config, qformer: nn.Module) -> None:
        super().__init__()
        self.vit = vit.ViT(config.image)
        self.qformer = qformer
        self.projection = nn.Linear(config.qformer.width, config.text.width)

    def forward(self, pixels: Tensor, *instruction: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 and, with InstructBLIP, (B, T), (B,) → (B, Q, D)."""
        return self.projection(self.qformer(self.vit(pixels), *instruction))


class Blip2(nn.Module):
    """Image encoder and language model."""

    def __init__(self, config: Config, qformer: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = ImageEncoder(config, qformer or QFormer(config.qformer))
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

BLIP_2 = Architecture(
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


# ------------------------------------------------------------------------------------- InstructBLIP

INSTRUCTED_MODELS: Mapping[str, Architecture] = {"llama": llama.LLAMA, **LANGUAGE_MODELS}
"""`model_type` of `text_config` → the language model."""
INSTRUCTED_ENDS: Mapping[str, Mapping[str, int]] = {"llama": llama.ENDS, **ENDS}
"""What `transformers` takes where `text_config` says nothing."""


@dataclass(frozen=True, kw_only=True)
class InstructConfig(Config):
    """BLIP-2's, and the instruction's vocabulary and positions."""

    vocabulary_size: int = key("vocab_size", 30522)
    positions: int = key("max_position_embeddings", 512)

    @property
    def limits(self) -> Limits:
        """Of the language model, and for an instruction of the Q-Former."""
        own = self.text.limits
        given = own.max_input_tokens or self.positions
        return own.model_copy(update={"max_input_tokens": min(self.positions, given)})


def read_instructed(values: Mapping[str, Any]) -> InstructConfig:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: another language model, or a token that it lacks.
    """
    section = ConfigReader(values).section("qformer_config")
    return section.read(InstructConfig, **vars(read_config(values, INSTRUCTED_MODELS)))


class InstructedBlock(QueryBlock):
    """Queries and words attend to each other; each have an MLP of their own.

    Args:
        reads_words: Whether a later block reads the words.
    """

    def __init__(self, config: QFormerConfig, *, reads_image: bool, reads_words: bool) -> None:
        super().__init__(config, reads_image=reads_image)
        self.reads_words = reads_words
        if reads_words:
            self.text_mlp = MLP(config.width, config.mlp_width, config.activation)
            self.text_norm = nn.LayerNorm(config.width, eps=config.norm_epsilon)

    def read_instructed(
        self, queries: Tensor, words: Tensor, lengths: Tensor, patches: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, Q, F), (B, T, F), (B, N, E) → queries and words.

        Args:
            lengths: (B,) int32, of queries and words together.
        """
        x = torch.cat([queries, words], dim=1)
        x = self.attention_norm(x + self.attention(x, lengths))
        queries, words = x[:, : queries.shape[1]], x[:, queries.shape[1] :]
        if self.reads_words:
            words = self.text_norm(words + self.text_mlp(words))
        return self.finish_queries(queries, patches), words


class InstructedQFormer(nn.Module):
    """Queries, an instruction, and what the former find in an image."""

    def __init__(self, config: InstructConfig) -> None:
        super().__init__()
        shape = config.qformer
        self.queries = nn.Parameter(torch.zeros(1, shape.queries, shape.width))
        self.tokens = nn.Embedding(config.vocabulary_size, shape.width)
        self.positions = nn.Embedding(config.positions, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.norm_epsilon)
        self.blocks = nn.ModuleList(
            InstructedBlock(
                shape,
                reads_image=layer % shape.cross_every == 0,
                reads_words=layer + 1 < shape.layers,
            )
            for layer in range(shape.layers)
        )

    def forward(self, patches: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, N, E), (B, T) right-padded, (B,) int32 → (B, Q, F)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        places = places.clamp(max=self.positions.num_embeddings - 1)  # padding may lie beyond
        words = self.norm(self.tokens(tokens) + self.positions(places))
        queries = self.norm(self.queries.expand(patches.shape[0], -1, -1))
        total = lengths + self.queries.shape[1]
        for block in self.blocks:
            assert isinstance(block, InstructedBlock)
            queries, words = block.read_instructed(queries, words, total, patches)
        return queries


class InstructBlip(Blip2):
    """BLIP-2 whose image encoder reads instructions."""

    def __init__(self, config: InstructConfig) -> None:
        super().__init__(config, InstructedQFormer(config))


def rename_instructed(config: InstructConfig) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "qformer.encoder.layer", "encoder.qformer.blocks"
    words = {"intermediate.dense": "text_mlp.up", "output.dense": "text_mlp.down"}
    words["output.LayerNorm"] = "text_norm"
    last = config.qformer.layers - 1
    table: Names = {
        **{f"{theirs}.*.{name}": f"{ours}.*.{own}" for name, own in words.items()},
        **{f"{theirs}.{last}.{name}": None for name in words},  # that nothing reads
        "qformer.embeddings.word_embeddings": "encoder.qformer.tokens",
        "qformer.embeddings.position_embeddings": "encoder.qformer.positions",
        "qformer.embeddings.layernorm": "encoder.qformer.norm",
        "qformer.embeddings.position_ids": None,
    }
    plain = rename(config)
    return Rename(plain.table | table, tied=plain.tied)


def instructed_graphs(model: InstructBlip, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I, T dynamic; B, S with T5) and `step` (R, T, P, B, S dynamic; in place)."""
    image = prepare_tower(model.encoder.vit, image, model.config.image.image)
    assert isinstance(model.config, InstructConfig)
    vocabulary = model.config.vocabulary_size
    if isinstance(model.language, t5.T5):
        return source_graphs(model, model.language, image, vocabulary)
    return image_token_graphs(
        model.encoder, model.decoder, image, model.images, instruction_vocabulary=vocabulary
    )


INSTRUCTBLIP = replace(
    BLIP_2,
    name="instructblip",
    read_config=read_instructed,
    build=InstructBlip,
    rename=rename_instructed,
    graphs=instructed_graphs,
    generation=partial(generation, defaults=INSTRUCTED_ENDS),
    reads_instructions=True,
)
