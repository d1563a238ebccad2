"""ModernBERT: BERT's tasks with rotary positions, gated MLPs, and windows in most layers.

Paper: Warner et al. 2024, "Smarter, Better, Faster, Longer: A Modern Bidirectional Encoder for
Fast, Memory Efficient, and Long Context Finetuning and Inference", §2.1 (arXiv 2412.13663).
Checkpoints: `model_type: modernbert`: bare, for masked words, classifiers, taggers.

Legend: B batch, T positions, N vectors, D width, C classes, V vocabulary.

Differences from `transformers`: as of BERT (`bert.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.architecture import LimitedByPositions
from export.config.config_reader import ConfigReader, key
from export.config.weight_names import Entry, Rename, WeightLayout, with_and_without
from export.layers.activation import activation
from export.layers.attention.attention import SelfAttention
from export.layers.attention.heads import Heads
from export.layers.attention.rotary import Rotary, rope_parameters, rotary_of
from export.layers.blocks import EncoderBlock, GatedMLP
from export.models.decoders import llama
from export.text_encoders.declaration import text_architecture
from export.text_encoders.heads import HeadConfig, HeadKind, read_head
from export.text_encoders.network import TextEncoder, TextModel
from export.text_encoders.pooling import first, mean

# ---------------------------------------------------------------------------------------- config

HEADS = (HeadKind.BARE, HeadKind.MASKED, HeadKind.SEQUENCE, HeadKind.TOKENS, HeadKind.ANSWER)
GLOBAL_BASE, LOCAL_BASE = 160_000.0, 10_000.0
_DEFAULTS = {"num_hidden_layers": 22, "hidden_size": 768, "num_attention_heads": 12}
_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class Config(LimitedByPositions):
    """The encoder and its head.

    Attributes:
        layers: Heads of each layer: rotation and window depend on the layer.
        has_head_bias: Whether the head's hidden layer has a bias.
        has_output_bias: Whether scores of the vocabulary have one.
        pools_mean: Whether classes are read from the mean of all tokens, or from the first one.
    """

    vocabulary_size: int = key("vocab_size", 50368)
    positions: int = key("max_position_embeddings", 8192)
    layers: tuple[Heads, ...]
    mlp_width: int = key("intermediate_size", 1152)
    mlp_bias: bool = key("mlp_bias", False)
    activation: str = key("hidden_activation", "gelu", "activation")
    norm_epsilon: float = key("norm_eps", 1e-5)
    norm_bias: bool = key("norm_bias", False)
    head_activation: str = key("classifier_activation", "gelu")
    has_head_bias: bool = key("classifier_bias", False)
    has_output_bias: bool = key("decoder_bias", True)
    pools_mean: bool
    head: HeadConfig

    @property
    def width(self) -> int:
        """D."""
        return self.layers[0].model_width


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; defaults are `transformers`' own."""
    reader = ConfigReader(values, defaults=_DEFAULTS)
    positions = reader.integer("max_position_embeddings", 8192)
    return reader.read(
        Config,
        layers=_read_layers(reader, positions),
        pools_mean=reader.choice("classifier_pooling", ("cls", "mean"), "cls") == "mean",
        head=read_head(reader, "ModernBert", HEADS),
    )


def _read_layers(reader: ConfigReader, positions: int) -> tuple[Heads, ...]:
    """Heads of each layer: every third one sees the whole text, unless `layer_types` differs."""
    bias = reader.flag("attention_bias", False)
    heads = reader.read(Heads, bias=bias, out_bias=bias)
    everywhere, near = _read_rotaries(reader, heads.width, positions)
    period = reader.integer("global_attn_every_n_layers", 3)
    sliding = llama.sliding_layers(reader, lambda layer: layer % period != 0)
    window = reader.integer("local_attention", 128) // 2 + 1  # `local_attention` is both sides
    return tuple(
        replace(heads, rotary=near, window=window) if slides else replace(heads, rotary=everywhere)
        for slides in sliding
    )


def _read_rotaries(reader: ConfigReader, width: int, positions: int) -> tuple[Rotary, Rotary]:
    """Of layers without and with a window; `transformers` 5 nests parameters by kind of layer."""
    nested = rope_parameters(reader, reader.values.get("rope_parameters"))
    common = rope_parameters(reader, reader.values.get("rope_scaling"))
    bases = (
        reader.number("global_rope_theta", GLOBAL_BASE),
        reader.number("local_rope_theta", LOCAL_BASE),
    )
    everywhere, near = (
        rotary_of(reader, {**rope_parameters(reader, given), **common}, width, positions, base)
        for given, base in zip(map(nested.get, _KINDS), bases, strict=True)
    )
    return everywhere, near


# --------------------------------------------------------------------------------------- network


class Encoder(TextEncoder):
    """Embeddings without positions, and pre-norm blocks; the first has no norm before attention,
    since the embeddings end in one (§2.1.1).
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.width = config.width
        self.tokens = nn.Embedding(config.vocabulary_size, config.width)
        self.norm = _make_norm(config)
        self.blocks = nn.ModuleList(_make_block(config, heads) for heads in config.layers)
        self.blocks[0].attention_norm = nn.Identity()
        self.final_norm = _make_norm(config)

    def forward(self, token_ids: Tensor, lengths: Tensor, segments: Tensor | None = None) -> Tensor:
        """(B, T), (B,) → (B, T, D)."""
        x = self.norm(self.tokens(token_ids))
        for block in self.blocks:
            x = block(x, lengths)
        return self.final_norm(x)


class Head(nn.Module):
    """A hidden layer with a norm, and the output: scores of words, classes or tags.

    Args:
        outputs: V or C.
    """

    def __init__(self, config: Config, outputs: int, *, bias: bool = True) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width, bias=config.has_head_bias)
        self.activation = activation(config.head_activation)
        self.norm = _make_norm(config)
        self.output = nn.Linear(config.width, outputs, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, D) → (…, outputs)."""
        return self.output(self.norm(self.activation(self.dense(hidden))))


class Classifier(Head):
    """Scores of a text's classes, from its first vector or from the mean."""

    def __init__(self, config: Config, classes: int) -> None:
        super().__init__(config, classes)
        self.pool = mean if config.pools_mean else first

    @property
    def reads_first(self) -> bool:
        """Whether the first token's vector is enough."""
        return self.pool is first

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:  # type: ignore[override]
        """(B, T, D), (B,) → logits (B, C)."""
        return super().forward(self.pool(hidden, lengths))


def build(config: Config) -> TextModel:
    """The encoder with its head."""
    encoder = Encoder(config)

    def masked() -> Head:
        head = Head(config, config.vocabulary_size, bias=config.has_output_bias)
        if config.head.is_tied:
            head.output.weight = encoder.tokens.weight
        return head

    return TextModel(
        encoder,
        config.head,
        masked=masked,
        classifier=partial(Classifier, config),
        tagger=partial(Head, config),
    )


def _make_norm(config: Config) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.norm_bias)


def _make_block(config: Config, heads: Heads) -> EncoderBlock:
    return EncoderBlock(
        SelfAttention(heads),
        GatedMLP(config.width, config.mlp_width, config.activation, bias=config.mlp_bias),
        partial(_make_norm, config),
        is_norm_first=True,
    )


# ----------------------------------------------------------------------------------------- names


def rename(config: Config) -> Rename:
    """`transformers`' names → ours; what another head left in the file is skipped."""
    theirs, ours = "layers.*", "encoder.blocks.*"
    packed = tuple(f"{ours}.attention.{part}" for part in ("query", "key", "value"))
    encoder: dict[str, Entry] = {
        "embeddings.tok_embeddings": "encoder.tokens",
        "embeddings.norm": "encoder.norm",
        "final_norm": "encoder.final_norm",
        f"{theirs}.attn_norm": f"{ours}.attention_norm",
        f"{theirs}.attn.Wqkv": WeightLayout(packed),
        f"{theirs}.attn.Wo": f"{ours}.attention.out",
        f"{theirs}.mlp_norm": f"{ours}.mlp_norm",
        f"{theirs}.mlp.Wi": WeightLayout((f"{ours}.mlp.gate", f"{ours}.mlp.up")),
        f"{theirs}.mlp.Wo": f"{ours}.mlp.down",
    }
    parts = {
        HeadKind.MASKED: "masked",
        HeadKind.SEQUENCE: "classifier",
        HeadKind.TOKENS: "tagger",
        HeadKind.ANSWER: "tagger",
    }
    part = parts.get(config.head.kind)
    output = None if part is None else f"{part}.output"
    head: dict[str, Entry] = {
        "head.dense": None if part is None else f"{part}.dense",
        "head.norm": None if part is None else f"{part}.norm",
        "decoder": output if part == "masked" else None,
        "classifier": None if part == "masked" else output,
    }
    return Rename(with_and_without("model.", encoder) | head)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = text_architecture("modernbert", read_config, build, rename)
