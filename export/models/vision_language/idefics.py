"""Flamingo in Idefics' form: a language model that reads images between its words.

Papers: Alayrac et al. 2022, "Flamingo: a Visual Language Model for Few-Shot Learning", §2
(arXiv 2204.14198); Laurençon et al. 2023, "OBELICS", §4.1 (arXiv 2306.16527), whose models are its
open form over CLIP's image tower and Llama.
Checkpoints: `model_type: idefics` (`HuggingFaceM4/idefics-9b`, `-80b`, `-instruct`).

Legend: B images, L positions of an image, E width of the image tower, R rows, T new positions,
D width, V vocabulary, A added tokens.

Differences from `transformers`: keys and values of an image are computed once, by `admit`; the
image of each token follows from the tokens, as `IdeficsProcessor` derives it, also behind an end
token; tokens that are generated are counted on, where `transformers` repeats the mask of the
prompt's last token, which differs only for a prompt that ends with an end token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.onnx import is_in_onnx_export

from export.architecture import Architecture, Graphs
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, projections
from export.decoder_graphs.interleaved import ImageCounter, InterleavedDecoder, interleaved_graphs
from export.layers.attention.gated_cross import GatedCrossBlock, ImageAttention
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import read_rotary
from export.layers.blocks import BlockConfig, GatedMLP, RMSNorm
from export.layers.decoder import output_name, output_table, tied_logits
from export.layers.images.vision import patch_count, prepare_tower
from export.models.decoders import llama
from export.models.dual_encoders import clip
from export.models.vision_language import perceiver_resampler
from export.quantization.quantize import NARROWEST
from export.tokenizer.prompt_images import IMAGE_TOKEN, image_places
from inference.bundle.inputs import ImageSpec, PromptImages
from inference.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The image tower, and the resampler where there is one."""

    tower: BlockConfig
    image: tuple[int, int] = key("image_size", 224)
    patch: tuple[int, int] = key("patch_size", 14)
    resampler: perceiver_resampler.Config | None

    @property
    def positions(self) -> int:
        """L: latents, or patches and the class token."""
        if self.resampler is not None:
            return self.resampler.latents
        return patch_count(self.image, self.patch) + 1


@dataclass(frozen=True, kw_only=True)
class Config(llama.Config):
    """Llama's, and what is between its blocks."""

    supported = {"head_dim": None}
    image: ImageConfig
    added_tokens: int = key("additional_vocab_size", 0, "index")
    """A: behind the vocabulary, in tables of their own."""
    interval: int = key("cross_layer_interval", 1)
    """A gated block is in front of every so many layers, from the first on."""
    gate: Literal["float", "vector"] = key(
        "alpha_type", "float", "choice", supported=("float", "vector")
    )
    has_gated_norms: bool = key("qk_layer_norms", False)
    """Whether gated blocks normalise each head's queries and keys."""
    image_token: int
    end_token: int | None

    @property
    def gated_blocks(self) -> int:
        """Number of gated blocks."""
        return len(self.layers) // self.interval


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = llama.open_config(values, **_DEFAULTS)
    reader.refuse_heads("ForVisionText2Text")
    heads = reader.read(Heads, bias=False, out_bias=False)
    rotary = read_rotary(reader, heads.width, reader.integer("max_position_embeddings"))
    # the published checkpoints' second added token, where no tokenizer gives its id
    image_token = reader.index(IMAGE_TOKEN, reader.integer("vocab_size") + 1)
    config = reader.read(
        Config,
        image=_read_image(reader),
        layers=(replace(heads, rotary=rotary),) * reader.layers("num_hidden_layers"),
        has_mlp_bias=False,
        image_token=image_token,
        end_token=_end_token(reader),
    )
    if len(config.layers) % config.interval:
        raise CheckpointError(
            f"{reader.place}: num_hidden_layers = {len(config.layers)} is not a multiple of "
            f"cross_layer_interval = {config.interval}"
        )
    vocabulary, added = config.vocabulary_size, config.added_tokens
    if image_token >= vocabulary + added:
        raise CheckpointError(
            f"{reader.place}: {IMAGE_TOKEN} = {image_token} is outside the vocabulary of "
            f"{vocabulary} tokens and {added} added ones"
        )
    return config


def _end_token(reader: ConfigReader) -> int | None:
    """The end token, the first where there are several; None where there is none.

    Raises:
        CheckpointError: no token's id.
    """
    given = reader.values.get("eos_token_id", 2)
    end = given[0] if isinstance(given, list) and given else given
    if end is not None and type(end) is not int:
        raise CheckpointError(
            f"{reader.place}: eos_token_id must be the id of a token, or a list of such, "
            f"not {given!r}"
        )
    return end


def _read_image(reader: ConfigReader) -> ImageConfig:
    vision = reader.section("vision_config", _IMAGE_DEFAULTS, {"hidden_size": "embed_dim"})
    vision.refuse_unless(num_channels=3)
    tower, resampler = vision.read(BlockConfig), None
    if reader.flag("use_resampler", False):
        perceiver = reader.section("perceiver_config")
        resampler = perceiver.read(perceiver_resampler.Config, width=tower.width)
    return vision.read(ImageConfig, tower=tower, resampler=resampler)


_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32000,
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
}
_IMAGE_DEFAULTS = {
    "num_hidden_layers": 32,
    "hidden_size": 768,
    "num_attention_heads": 16,
    "intermediate_size": 5120,
    "layer_norm_eps": 1e-5,
}


# ---------------------------------------------------------------------------------------- blocks


def make_gated_block(config: Config) -> GatedCrossBlock:
    """Attention to images and gated MLP, each multiplied by tanh(α)."""
    heads = Heads(config.width, config.layers[0].count, bias=False, out_bias=False)
    head_norm = partial(RMSNorm, eps=config.norm_epsilon) if config.has_gated_norms else None
    return GatedCrossBlock(
        ImageAttention(heads, config.image.tower.width, head_norm),
        GatedMLP(config.width, config.mlp_width, config.activation),
        partial(RMSNorm, config.width, config.norm_epsilon),
        config.gate,
    )


# --------------------------------------------------------------------------------------- network


class ImageEncoder(nn.Module):
    """CLIP's image tower without its last norm, then the resampler."""

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        self.vit = clip.VisionTransformer(config.tower, config.image, config.patch)
        del self.vit.norm  # of the pooled vector, which is not used
        self.resampler: nn.Module = nn.Identity()
        if config.resampler is not None:
            self.resampler = perceiver_resampler.PerceiverResampler(config.resampler)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, L, E)."""
        return self.resampler(self.vit.hidden(pixels))


class Decoder(InterleavedDecoder):
    """Tokens, and the images before them → scores of the next token."""

    packed_output: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.layers[0]
        self.vocabulary_size = config.vocabulary_size + config.added_tokens
        self.order = [True, *[False] * config.interval] * config.gated_blocks
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.blocks = nn.ModuleList(llama.make_block(config, heads) for heads in config.layers)
        self.gated_blocks = nn.ModuleList(
            make_gated_block(config) for _ in range(config.gated_blocks)
        )
        self.norm = RMSNorm(config.width, config.norm_epsilon)
        tied = config.has_tied_output
        self.output = output_table(self.tokens, is_tied=tied)
        self.has_added_tokens = config.added_tokens > 0
        if self.has_added_tokens:
            self.added_tokens = nn.Embedding(config.added_tokens, config.width)
            self.added_output = output_table(self.added_tokens, is_tied=tied)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D), from the table of the vocabulary or that of the added tokens."""
        if not self.has_added_tokens:
            return self.tokens(tokens)
        first = self.tokens.num_embeddings
        added = self.added_tokens((tokens - first).clamp(min=0))
        own = self.tokens(tokens.clamp(max=first - 1))
        return torch.where((tokens >= first)[..., None], added, own)

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V + A)."""
        own = tied_logits(hidden, self.output)
        if not self.has_added_tokens:
            return own
        count = len(self.added_output)
        table = self.packed_output if is_in_onnx_export() else self.added_output
        return torch.cat([own, tied_logits(hidden, table)[:, :count]], dim=-1)

    def pack(self) -> None:
        """Fills the table of the few added tokens' scores up; called once before export.

        Int8 graphs keep a layer of fewer outputs in float32, where the bits of a row depend on the
        number of rows.
        """
        if self.has_added_tokens:
            missing = max(0, NARROWEST - len(self.added_output))
            table = functional.pad(self.added_output.detach(), (0, 0, 0, missing))
            self.register_buffer("packed_output", table, persistent=False)


class Idefics(nn.Module):
    """Image encoder and decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = ImageEncoder(config.image)
        self.decoder = Decoder(config)

    @property
    def images(self) -> PromptImages:
        """How its prompts hold images."""
        return PromptImages(positions=self.config.image.positions, token_id=self.config.image_token)


# ----------------------------------------------------------------------------------------- names

_GATED, _OWN = "model.gated_cross_attn_layers.*", "decoder.gated_blocks.*"


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    tied = config.has_tied_output
    projected = "q_proj k_proj v_proj o_proj"
    table: dict[str, Entry] = {
        **clip.vision_names("model.vision_model", "encoder.vit"),
        "model.vision_model.post_layernorm": None,
        **perceiver_resampler.rename("model.perceiver_resampler", "encoder.resampler"),
        **Rename(llama.NAMES).prefixed("", "decoder."),
        "model.embed_tokens.additional_embedding": "decoder.added_tokens",
        **projections(f"{_GATED}.cross_attn", f"{_OWN}.attention", projected),
        f"{_GATED}.cross_attn.rotary_emb.inv_freq": None,  # which old versions stored
        f"{_GATED}.input_layernorm": f"{_OWN}.attention_norm",
        f"{_GATED}.post_attention_layernorm": f"{_OWN}.mlp_norm",
        **{f"{_GATED}.mlp.{name}_proj": f"{_OWN}.mlp.{name}" for name in ("gate", "up", "down")},
        f"{_GATED}.cross_attn.q_layer_norm": f"{_OWN}.attention.query_norm",
        f"{_GATED}.cross_attn.k_layer_norm": f"{_OWN}.attention.key_norm",
        f"{_GATED}.alpha_cross_attn": f"{_OWN}.attention_gate",
        f"{_GATED}.alpha_dense": f"{_OWN}.mlp_gate",
        "lm_head.weight": f"decoder.{output_name(is_tied=tied)}",
        "lm_head.additional_fc.weight": (
            "decoder.added_tokens.weight" if tied else "decoder.added_output"
        ),
    }
    return Rename(table)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Idefics, image: ImageSpec | None) -> Graphs:
    """`admit` (B, I dynamic) and `step` (R, T, P, B, S dynamic; in place)."""
    image = prepare_tower(model.encoder.vit, image)
    images = model.images
    counter = ImageCounter(images.token_id, images.positions, model.config.end_token)
    return interleaved_graphs(model.encoder, model.decoder, image, images, counter)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="idefics",
    tasks={"generate": image_places, "caption": image_places},
    read_config=read_config,
    build=Idefics,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image.image,
    details=lambda network: {"images": network.images},
    token_ids={IMAGE_TOKEN: "<image>"},
)
