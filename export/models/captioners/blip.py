"""BLIP's captioner: a ViT whose patch vectors a BERT decoder attends to.

Paper: Li et al. 2022, "BLIP: Bootstrapping Language-Image Pre-training for Unified Vision-Language
Understanding and Generation", §3.1, the image-grounded text decoder (arXiv 2201.12086).
Checkpoints: `model_type: blip` of `BlipForConditionalGeneration`; retrieval has its own file.

Legend: B batch, N patches, D decoder width.

Differences from `transformers`: cross-attention keys and values are computed once, by `admit`;
pixels come as uint8 and are normalised in the graph. A caption begins behind the start token, or
behind the start token and a prompt without its own start and end tokens; it ends at `sep_token_id`,
as `BlipForConditionalGeneration.generate` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from export.architecture import Architecture, Graphs, no_section
from export.checkpoint.checkpoint import Checkpoint
from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, Rename, WeightLayout
from export.decoder_graphs.source import image_source
from export.decoder_graphs.transformer import alignment, encoder_decoder_graphs
from export.layers.blocks import BASE
from export.layers.images.vision import prepare_tower
from export.models.captioners import blip_retrieval
from export.models.encoder_decoders import bert_decoder
from export.models.vision import vit
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

_CAPTIONER, _RETRIEVAL = "BlipForConditionalGeneration", "BlipForImageTextRetrieval"
_IMAGE_DEFAULTS = BASE | {"image_size": 384, "layer_norm_eps": 1e-5}
_TEXT_DEFAULTS = BASE | {
    "vocab_size": 30524,
    "max_position_embeddings": 512,
    "num_attention_heads": 8,
}
_ENDS = {"bos_token_id": 30522, "sep_token_id": 102, "pad_token_id": 0}
_NEW_TOKENS = 20
"""Of a caption behind its prompt; `transformers` reads no other length for the inner decoder."""


@dataclass(frozen=True)
class Config:
    """Both halves."""

    encoder: vit.Config
    decoder: bert_decoder.Config

    @property
    def limits(self) -> Limits:
        """The decoder's position table bounds prompt and caption together."""
        return Limits(max_total_tokens=self.decoder.positions)


def read_config(values: Mapping[str, Any]) -> Config | blip_retrieval.Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: a model for questions, or values that we lack.
    """
    heads = values.get("architectures") or [_CAPTIONER]
    if not {_CAPTIONER, _RETRIEVAL} & {*heads}:
        raise CheckpointError(
            f"config.json: {heads[0]} is not supported, only {_CAPTIONER} and {_RETRIEVAL} are"
        )
    reader = ConfigReader(values)
    image = reader.section("vision_config", _IMAGE_DEFAULTS).read(vit.Config)
    text = reader.section("text_config", _TEXT_DEFAULTS)
    if _RETRIEVAL in heads:
        return blip_retrieval.read_config(reader, image, text)
    is_tied = any(each.flag("tie_word_embeddings", True) for each in (reader, text))
    return Config(image, _read_text(text, image.width, is_tied=is_tied))


def _read_text(reader: ConfigReader, width: int, *, is_tied: bool) -> bert_decoder.Config:
    """`transformers` overwrites `encoder_hidden_size` with the image tower's width."""
    reader.refuse_unless(is_decoder=True)
    return reader.read(
        bert_decoder.Config,
        head_activation=reader.activation("hidden_act", "gelu"),
        segments=0,
        has_tied_output=is_tied,
        source_width=width,
    )


def generation(checkpoint: Checkpoint) -> dict[str, Any]:
    """The generation defaults of the text decoder, which its section of `config.json` gives.

    `transformers` generates with the inner decoder, so the folder's `generation_config.json`, which
    belongs to the whole model and names another end token, is not used.
    """
    text = checkpoint.config.get("text_config") or {}
    given = _ENDS | {name: value for name, value in text.items() if value is not None}
    ends = {"eos_token_id": given["sep_token_id"], "decoder_start_token_id": given["bos_token_id"]}
    return given | ends | {"max_new_tokens": _NEW_TOKENS}


# --------------------------------------------------------------------------------------- network


class Blip(nn.Module):
    """Image tower and text decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = vit.ViT(config.encoder)
        self.decoder = bert_decoder.BertDecoder(config.decoder)


def build(config: Config | blip_retrieval.Config) -> nn.Module:
    """The network of a checkpoint's head."""
    return Blip(config) if isinstance(config, Config) else blip_retrieval.Retrieval(config)


# ----------------------------------------------------------------------------------------- names


def image_names(ours: str) -> Names:
    """The table of the image tower."""
    block, own = "vision_model.encoder.layers.*", f"{ours}.blocks.*"
    parts = ("query", "key", "value")
    return {
        "vision_model.embeddings.class_embedding": f"{ours}.class_token",
        "vision_model.embeddings.position_embedding": f"{ours}.positions.table",
        "vision_model.embeddings.patch_embedding": f"{ours}.patches.projection",
        f"{block}.self_attn.qkv": WeightLayout(tuple(f"{own}.attention.{p}" for p in parts)),
        f"{block}.self_attn.projection": f"{own}.attention.out",
        f"{block}.layer_norm1": f"{own}.attention_norm",
        f"{block}.layer_norm2": f"{own}.mlp_norm",
        f"{block}.mlp.fc1": f"{own}.mlp.up",
        f"{block}.mlp.fc2": f"{own}.mlp.down",
        "vision_model.post_layernorm": f"{ours}.norm",
    }


def rename(config: Config | blip_retrieval.Config) -> Rename:
    """`transformers`' names → ours."""
    table = image_names("encoder")
    if not isinstance(config, Config):
        return Rename(table | blip_retrieval.NAMES)
    return Rename(table | bert_decoder.rename(config.decoder, "text_decoder.", "decoder."))


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Blip | blip_retrieval.Retrieval, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic), `step` (R, T, P, B dynamic; in place) and `align` (T dynamic)."""
    if isinstance(model, blip_retrieval.Retrieval):
        return blip_retrieval.graphs(model, image)
    image = prepare_tower(model.encoder, image, model.config.encoder.image)
    source = image_source(image, model.config.encoder.positions)
    return encoder_decoder_graphs(model.encoder, model.decoder, source)


def details(network: Any) -> Mapping[str, Any]:
    """A captioner's alignment."""
    if not isinstance(network, Blip):
        return {}
    return alignment(network.decoder, network.config.encoder.grid)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="blip",
    tasks={"caption": no_section, "classify": blip_retrieval.classify_section},
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.encoder.image,
    details=details,
    tasks_of=lambda config: ("caption" if isinstance(config, Config) else "classify",),
    generation=generation,
)
