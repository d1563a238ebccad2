"""Pix2Struct: patches of an image at its own aspect ratio → text.

Paper: Lee et al. 2022, "Pix2Struct: Screenshot Parsing as Pretraining for Visual Language
Understanding", §2.2 (arXiv 2210.03347): a ViT whose patches carry their row and column, as many of
them as a budget allows, and T5's decoder. A question is drawn above the image.
Checkpoints: `model_type: pix2struct` (`google/pix2struct-*`, `google/deplot`, `google/matcha-*`).

Legend: B batch, N patches of the budget, A pixels of a patch, D width of the image tower, R rows,
T new positions, H heads, K width of a head.

Differences from `transformers`: inference only; cross-attention keys and values are computed once;
a patch is A pixels and one that holds its row and column; `admit` returns the number of patches
that are no padding, which `step` reads from a state. A row or column behind the last of its table
has the last one's vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.architecture import Architecture, Graphs, no_section
from export.checkpoint.generation_defaults import generation_reader
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, projections
from export.decoder_graphs.source import image_source
from export.decoder_graphs.transformer import counted_source_graphs
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.blocks import BASE, BlockConfig, EncoderBlock, GatedMLP, RMSNorm
from export.models.encoder_decoders import t5
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

_BUDGET = 2048
"""N where no recipe says it."""

# ---------------------------------------------------------------------------------------- config


_NAMES = {"intermediate_size": "d_ff", "hidden_act": "dense_act_fn"}
_TOWER = BASE | {"intermediate_size": 2048, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6}
_TEXT = {"vocab_size": 50244, "d_ff": 2048}


@dataclass(frozen=True, kw_only=True)
class Config:
    """Both halves.

    Attributes:
        patch_values: 3 · A.
        places: Rows of the tables of rows and columns.
    """

    tower: BlockConfig
    patch_values: int = key("patch_embed_hidden_size", 768)
    places: int = key("seq_len", 4096)
    text: t5.Config
    has_tied_output: bool

    @property
    def limits(self) -> Limits:
        """As of T5, nothing but distances is learned."""
        return Limits(max_total_tokens=t5.POSITIONS)

    @property
    def array(self) -> tuple[int, int]:
        """N of a usual recipe, and A + 1."""
        return min(_BUDGET, self.places), self.patch_values // 3 + 1


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own.

    Raises:
        CheckpointError: heads of the decoder that do not make its width; no whole pixels.
    """
    reader = ConfigReader(values)
    reader.refuse_heads("ForConditionalGeneration")
    vision = reader.section("vision_config", _TOWER, _NAMES)
    text = reader.section("text_config", _TEXT)
    width, count = text.integer("hidden_size", 768), text.integer("num_heads", 12)
    text.refuse_unless(d_kv=width // count, is_decoder=True)
    text.divide(width, count)
    buckets, farthest = t5.read_distances(text)
    layers = text.layers("num_layers", 12)
    plain = Heads(width, count, bias=False, out_bias=False, scale=1.0)
    heads = replace(
        plain,
        model_width=vision.integer("hidden_size"),
        count=vision.integer("num_attention_heads"),
        head_width=vision.integer("d_kv", 64),
    )
    config = vision.read(
        Config,
        tower=vision.read(BlockConfig, heads=heads),
        text=text.read(
            t5.Config,
            width=width,
            heads=plain,
            activation=text.activation("dense_act_fn", "gelu_new"),
            is_gated=True,
            encoder_layers=layers,
            decoder_layers=layers,
            buckets=buckets,
            farthest=farthest,
            output_scale=1.0,
            translates=False,
        ),
        has_tied_output=reader.flag("tie_word_embeddings", False),
    )
    if config.patch_values % 3:
        raise CheckpointError(
            f"{vision.place}: patch_embed_hidden_size = {config.patch_values} is not of whole "
            "pixels"
        )
    return config


_ENDS = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
"""Where the configuration says nothing."""


# --------------------------------------------------------------------------------------- network


class Encoder(nn.Module):
    """Patches with their rows and columns → vectors."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        tower = config.tower
        self.projection = nn.Linear(config.patch_values, tower.width)
        self.rows = nn.Embedding(config.places, tower.width)
        self.columns = nn.Embedding(config.places, tower.width)
        norm = partial(RMSNorm, tower.width, tower.norm_epsilon)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                SelfAttention(tower.heads),
                GatedMLP(tower.width, tower.mlp_width, tower.activation),
                norm,
                is_norm_first=True,
            )
            for _ in range(tower.layers)
        )
        self.norm = norm()

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, A + 1, 3) → vectors (B, N, D), and patches that are no padding (B,)."""
        patches = pixels[:, :, :-1].flatten(2)  # (B, N, 3·A)
        places = pixels[:, :, -1].long().clamp(min=0, max=self.rows.num_embeddings - 1)
        count = (places[..., 0] > 0).long().sum(dim=1).clamp(min=1)  # (B,)
        x = self.projection(patches) + self.rows(places[..., 0]) + self.columns(places[..., 1])
        for block in self.blocks:
            x = block(x, count.int())
        return self.norm(x), count


class Pix2Struct(nn.Module):
    """Image tower and T5's decoder."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        tokens = nn.Embedding(config.text.vocabulary_size, config.text.width)
        self.decoder = t5.Decoder(config.text, tokens)


# ----------------------------------------------------------------------------------------- names

_PROJECTIONS = "query key value output"
_MLP = {"wi_0": "gate", "wi_1": "up", "wo": "down"}


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    theirs, ours = "encoder.encoder.layer.*", "encoder.blocks.*"
    table: dict[str, Entry] = {
        "encoder.embeddings.patch_projection": "encoder.projection",
        "encoder.embeddings.row_embedder": "encoder.rows",
        "encoder.embeddings.column_embedder": "encoder.columns",
        "encoder.layernorm": "encoder.norm",
        f"{theirs}.pre_attention_layer_norm": f"{ours}.attention_norm",
        f"{theirs}.pre_mlp_layer_norm": f"{ours}.mlp_norm",
        "decoder.embed_tokens": "decoder.tokens",
        "decoder.final_layer_norm": "decoder.norm",
        "decoder.lm_head.weight": "decoder.output",
        "decoder.layer.0.self_attention.attention.relative_attention_bias": "decoder.relative.bias",
    }
    table |= {f"{theirs}.mlp.{name}": f"{ours}.mlp.{own}" for name, own in _MLP.items()}
    table |= projections(f"{theirs}.attention", f"{ours}.attention", _PROJECTIONS)
    theirs, ours = "decoder.layer.*", "decoder.blocks.*"
    for name, own in (("self_attention", "attention"), ("encoder_decoder_attention", "cross")):
        table |= projections(f"{theirs}.{name}.attention", f"{ours}.{own}", _PROJECTIONS)
        table[f"{theirs}.{name}.layer_norm"] = f"{ours}.{own}_norm"
    dense = f"{theirs}.mlp.DenseReluDense"
    table |= {f"{dense}.{name}": f"{ours}.mlp.{own}" for name, own in _MLP.items()}
    table[f"{theirs}.mlp.layer_norm"] = f"{ours}.mlp_norm"
    tied = {"decoder.output": "decoder.tokens.weight"} if config.has_tied_output else {}
    return Rename(table, tied=tied)


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: Pix2Struct, image: ImageSpec | None) -> Graphs:
    """`admit` (B dynamic) and `step` (R, T, P, B dynamic; in place).

    Raises:
        CheckpointError: the recipe's patches have another size than the configuration's.
    """
    assert image is not None
    if 3 * (image.shape[1] - 1) != model.config.patch_values:
        raise CheckpointError(
            f"the image recipe has patches of {image.shape[1] - 1} pixels, config.json's "
            f"patch_embed_hidden_size is {model.config.patch_values}, three values for each"
        )
    source = image_source(image, image.shape[0])
    pixels = source.ports[0].model_copy(update={"dtype": "float32"})
    source = replace(source, ports=(pixels,))
    return counted_source_graphs(model.encoder, model.decoder, source, "patches")


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="pix2struct",
    tasks={"caption": no_section},
    read_config=read_config,
    build=Pix2Struct,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.array,
    generation=generation_reader(_ENDS),
)
