"""Perceiver IO: inputs of any kind and length are read into a fixed number of latent vectors.

Paper: Jaegle et al. 2021, "Perceiver IO: A General Architecture for Structured Inputs & Outputs",
§3 (arXiv 2107.14795), after "Perceiver" (arXiv 2103.03206).
Checkpoints: `deepmind/language-perceiver`, `deepmind/vision-perceiver-*` and others of `model_type:
perceiver`: classes for masked tokens, for texts, and for images with learned positions, Fourier
features or a convolution.

Legend: B batch, T tokens, N latents, D their width, E width of an input, M positions.

Differences from `transformers`: texts are given with their lengths instead of a mask; of the output
queries, one a position, only those at masked positions are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.architecture import Architecture, Graphs
from export.checkpoint.checkpoint import Checkpoint
from export.checkpoint.labels import classify_section, labels
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import BERT_ATTENTION, Entry, Rename, normed_names, projections
from export.layers.images.image_heads import ImageModel
from export.layers.images.pixel_arrays import (
    ConvolvedPixels,
    FourierPixels,
    LearnedPixels,
    PixelArray,
)
from export.layers.latents import LatentArray, LatentLayer, LatentShape, OneQuery
from export.text_encoders import declaration
from export.text_encoders.declaration import text_graphs
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.image_graphs import image_graphs
from export.text_encoders.network import SequenceClassifier, TextEncoder, TextModel
from inference.bundle.inputs import ImageSpec
from inference.bundle.manifest import Limits
from inference.errors import CheckpointError

PREFIX = "Perceiver"
LEARNED, FOURIER, CONVOLVED = (
    f"PerceiverForImageClassification{form}" for form in ("Learned", "Fourier", "ConvProcessing")
)
PIXELS: Mapping[str, type[PixelArray]] = {
    LEARNED: LearnedPixels,
    FOURIER: FourierPixels,
    CONVOLVED: ConvolvedPixels,
}
TEXTS = (HeadKind.MASKED, HeadKind.SEQUENCE)
MASK_HEADS, MASK_KEY_WIDTH = 8, 256  # of the layer that decodes masked tokens, in every checkpoint


@dataclass(frozen=True, kw_only=True)
class Config:
    """The latents, the three kinds of layers, and the inputs."""

    latents: int = key("num_latents", 256)
    """N."""
    repeats: int = key("num_blocks", 1, "layers")
    """Times that the layers are applied, with the same weights."""
    layers: int = key("num_self_attends_per_block", 26, "layers")
    read: LatentShape
    """Of the layer that reads the inputs."""
    process: LatentShape
    """Of the layers between latents."""
    vocabulary_size: int = key("vocab_size", 262)
    positions: int = key("max_position_embeddings", 2048)
    image_size: tuple[int, int]
    """Height and width; learned positions belong to it."""
    image: str | None
    """The class of an image classifier."""
    head: HeadConfig
    """Of a text; an image classifier's has its labels."""

    @property
    def limits(self) -> Limits:
        """The position table."""
        return Limits() if self.image else Limits(max_input_tokens=self.positions)

    @property
    def width(self) -> int:
        """D."""
        return self.process.width


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values)
    image, head = _head(reader)
    token_width = reader.integer("d_model", 768)
    inputs = PIXELS[image].width if image else token_width
    if head.fills_masks:
        reader.divide(token_width, MASK_HEADS)
    return reader.read(
        Config,
        read=_reading(reader, inputs),
        process=_processing(reader),
        image_size=_image_size(reader, image),
        image=image,
        head=head,
    )


def _head(reader: ConfigReader) -> tuple[str | None, HeadConfig]:
    """The class of an image classifier, if it is one, and the head."""
    listed = reader.values.get("architectures") or [None]
    if listed[0] in PIXELS:
        return listed[0], HeadConfig(HeadKind.SEQUENCE, labels(reader.values))
    supported = [f"{PREFIX}{kind}" for kind in TEXTS] + list(PIXELS)
    if listed[0] not in supported:
        raise CheckpointError(
            f"{reader.place}: architectures = {listed!r} is not supported (optical flow and "
            f"multimodal autoencoding are not); supported are: {', '.join(supported)}"
        )
    return None, read_head(reader, PREFIX, TEXTS)


def _image_size(reader: ConfigReader, image: str | None) -> tuple[int, int]:
    if image == LEARNED:
        side = reader.integer("image_size", 56)
        return side, side
    return reader.pair("image_size", 56)


def _reading(reader: ConfigReader, inputs: int) -> LatentShape:
    width, heads = reader.integer("d_latents", 1280), reader.integer("num_cross_attention_heads", 8)
    default = {"kv": inputs, "q": width}
    shape = reader.choice("cross_attention_shape_for_attention", default, "kv")
    return _shape(
        reader,
        width,
        inputs,
        heads,
        default[shape],
        factor=reader.integer("cross_attention_widening_factor", 1),
        has_residual=reader.flag("use_query_residual", True),
    )


def _processing(reader: ConfigReader) -> LatentShape:
    width, heads = reader.integer("d_latents", 1280), reader.integer("num_self_attention_heads", 8)
    factor = reader.integer("self_attention_widening_factor", 1)
    shape = _shape(reader, width, width, heads, width, factor=factor)
    if shape.value_width != width:  # the output is as wide as the values, and added to the latents
        raise CheckpointError(
            f"{reader.place}: v_channels = {shape.value_width} must be d_latents = {width}"
        )
    return shape


def _shape(
    reader: ConfigReader,
    width: int,
    source_width: int,
    heads: int,
    key_width: int,
    *,
    factor: int,
    has_residual: bool = True,
) -> LatentShape:
    """The widths of a layer of the encoder, where `qk_channels` and `v_channels` may be given."""
    key_width = reader.integer("qk_channels", key_width)
    value_width = reader.integer("v_channels", key_width)
    for each in (width, key_width, value_width):
        reader.divide(each, heads)
    activation = reader.activation("hidden_act", "gelu")
    return LatentShape(
        width, source_width, heads, key_width, value_width, factor * width, activation, has_residual
    )


# --------------------------------------------------------------------------------------- network


class TextReader(TextEncoder):
    """Tokens and their positions, read into latents; output queries where masks are filled."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        inputs, activation = config.read.source_width, config.read.activation
        self.width = config.width
        self.tokens = nn.Embedding(config.vocabulary_size, inputs)
        self.positions = nn.Embedding(config.positions, inputs)
        self.array = latent_array(config)
        if config.head.fills_masks:
            shape = LatentShape(
                inputs, config.width, MASK_HEADS, MASK_KEY_WIDTH, inputs, inputs, activation, False
            )
            self.queries = nn.Parameter(torch.zeros(config.positions, inputs))
            self.decoder = LatentLayer(shape, is_cross=True)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,) → (B, N, D); there are no segments."""
        inputs = self.tokens(token_ids) + self.positions.weight[: token_ids.shape[1]]
        return self.array(inputs, lengths)

    def vectors_at(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """(B, N, D), (B, M) → (B, M, E): the latents, decoded at these positions alone."""
        return self.decoder(functional.embedding(positions, self.queries), hidden)


class TiedTokens(nn.Module):
    """Scores of the vocabulary: products with its table, and a bias."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.output = nn.Linear(table.embedding_dim, table.num_embeddings)
        self.output.weight = table.weight

    def forward(self, vectors: Tensor) -> Tensor:
        """(N, E) → logits (N, V)."""
        return self.output(vectors)


class ImageReader(nn.Module):
    """Pixels, read into latents."""

    def __init__(self, config: Config, pixels: PixelArray) -> None:
        super().__init__()
        self.pixels = pixels
        self.array = latent_array(config)

    def prepare(self, image: ImageSpec) -> None:
        """Takes prepared uint8 pixels from now on."""
        self.pixels.prepare(image)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, height, width, 3) uint8 → (B, N, D)."""
        return self.array(self.pixels(pixels))


def latent_array(config: Config) -> LatentArray:
    """The latents with the layers that read and process."""
    return LatentArray(
        config.latents, config.read, config.process, layers=config.layers, repeats=config.repeats
    )


def build(config: Config) -> TextModel | ImageModel:
    """The network with the checkpoint's head; classes are read by one output query."""
    width, classes = config.width, len(config.head.labels)
    query = LatentShape(width, width, 1, width, width, width, config.read.activation)
    if config.image is not None:
        kind = PIXELS[config.image]
        pixels = LearnedPixels(config.image_size) if kind is LearnedPixels else kind()
        head = nn.Linear(width, classes)
        return ImageModel(ImageReader(config, pixels), OneQuery(query), head, classes)
    encoder = TextReader(config)
    return TextModel(
        encoder,
        config.head,
        masked=lambda: TiedTokens(encoder.tokens),
        classifier=lambda count: SequenceClassifier(width, count, None, OneQuery(query)),
    )


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours."""
    reader, theirs = ("network" if config.image else "encoder"), "perceiver.input_preprocessor"
    table: dict[str, Entry] = {"perceiver.embeddings.latents": f"{reader}.array.latents"}
    table |= _layer("perceiver.encoder.cross_attention", f"{reader}.array.read")
    table |= _layer("perceiver.encoder.self_attends.*", f"{reader}.array.process.*")
    if config.image is None:
        table[f"{theirs}.embeddings"] = "encoder.tokens"
        table[f"{theirs}.position_embeddings"] = "encoder.positions"
    else:
        table |= _pixels(theirs, "network.pixels")
    return Rename(table | _outputs(config))


def _outputs(config: Config) -> dict[str, Entry]:
    """The output queries, the layer that decodes, and what is behind it."""
    if config.head.fills_masks:
        theirs, query, layer = "perceiver.decoder", "encoder.queries", "encoder.decoder"
        behind: dict[str, Entry] = {"embedding_decoder.bias": "masked.output.bias"}
    else:
        pool = "pool" if config.image else "classifier.pool"
        theirs, query, layer = "perceiver.decoder.decoder", f"{pool}.query", f"{pool}.layer"
        behind = {f"{theirs}.final_layer": "head" if config.image else "classifier.output"}
    behind[f"{theirs}.output_position_encodings.position_embeddings"] = query
    return behind | _layer(f"{theirs}.decoding_cross_attention", layer)


def _pixels(theirs: str, ours: str) -> dict[str, Entry]:
    return {
        f"{theirs}.convnet_1x1": f"{ours}.convolution",
        f"{theirs}.position_embeddings.position_embeddings": f"{ours}.table",
        f"{theirs}.positions_projection": f"{ours}.projection",
        **normed_names(
            f"{theirs}.convnet.conv", f"{theirs}.convnet.batchnorm", f"{ours}.convolution"
        ),
    }


def _layer(theirs: str, ours: str) -> dict[str, Entry]:
    return {
        f"{theirs}.attention.self.layernorm1": f"{ours}.attention_norm",
        f"{theirs}.attention.self.layernorm2": f"{ours}.source_norm",
        **projections(f"{theirs}.attention", f"{ours}.attention", BERT_ATTENTION),
        f"{theirs}.layernorm": f"{ours}.mlp_norm",
        f"{theirs}.mlp.dense1": f"{ours}.mlp.up",
        f"{theirs}.mlp.dense2": f"{ours}.mlp.down",
    }


# ---------------------------------------------------------------------------------------- graphs


def graphs(model: TextModel | ImageModel, image: ImageSpec | None) -> Graphs:
    """The one graph of either kind."""
    return image_graphs(model, image) if isinstance(model, ImageModel) else text_graphs(model)


def _classes(model: TextModel | ImageModel, checkpoint: Checkpoint) -> Mapping[str, Any]:
    if isinstance(model, ImageModel):
        return classify_section(model, checkpoint)
    return declaration.classify_section(model, checkpoint)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = Architecture(
    name="perceiver",
    tasks={
        "fill-mask": declaration.fill_mask_section,
        "classify": _classes,
        "rerank": declaration.rerank_section,
    },
    read_config=read_config,
    build=build,
    rename=rename,
    graphs=graphs,
    image_size=lambda config: config.image_size if config.image else None,
    reads_text=lambda config: config.image is None,
    tasks_of=lambda config: ("classify",) if config.image else config.head.tasks,
)
