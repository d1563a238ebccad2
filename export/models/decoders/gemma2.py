"""Gemma 2, and what Gemma 3 shares with it.

Paper: Gemma Team 2024, "Gemma 2", §2 (arXiv 2408.00118): norms in front of and behind each
sub-layer, soft caps of scores and logits, every second layer with a window; embeddings are scaled
by √D, and norms store their weights' distance from 1.
Checkpoints: `model_type: gemma2`. The language model of Gemma 3 is in `gemma3.py`.

Legend: R rows, T new positions, P past positions, D width, V vocabulary.

Differences from `transformers`: inference only; attention to later positions
(`use_bidirectional_attention`) is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.layers.attention.cached_attention import CachedAttention
from export.layers.attention.heads import Heads, KeyValue, Rows
from export.layers.blocks import GatedMLP, RMSNorm
from export.models.decoders import llama
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config

ENDS = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
"""Of Gemma, where a checkpoint says nothing."""
_NAMES = {"layer_norm_epsilon": "rms_norm_eps", "hidden_act": "hidden_activation"}
_DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_epsilon": 1e-6,
}


@dataclass(frozen=True, kw_only=True)
class Config(DecoderConfig):
    """The network's part of `config.json`; layers differ in window and rotary positions only."""

    logits_cap: float | None
    """Logits l become c · tanh(l / c)."""
    has_head_norms: bool


def read_config(values: Mapping[str, Any]) -> Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = open_config(values)
    heads = read_heads(reader)
    heads = replace(heads, soft_cap=read_cap(reader, "attn_logit_softcapping", 50.0))
    window = reader.integer("sliding_window", 4096)
    sliding = llama.sliding_layers(reader, lambda layer: layer % 2 == 0)
    layers = tuple(replace(heads, window=window) if slides else heads for slides in sliding)
    return read_shape(reader, layers, logits_cap=30.0)


def open_config(values: Mapping[str, Any], positions: int = 8192) -> ConfigReader:
    """The reader of `config.json`.

    Args:
        positions: Default of `max_position_embeddings`.
    """
    defaults = _DEFAULTS | {"max_position_embeddings": positions}
    return ConfigReader(values, defaults=defaults, names=_NAMES)


def read_heads(reader: ConfigReader) -> Heads:
    """What the attention of all layers has in common."""
    heads = llama.read_heads(reader)
    return replace(heads, scale=read_positive(reader, "query_pre_attn_scalar", 256) ** -0.5)


def read_shape(
    reader: ConfigReader,
    layers: tuple[Heads, ...],
    *,
    logits_cap: float | None,
    has_head_norms: bool = False,
) -> Config:
    """The configuration around the heads.

    Args:
        logits_cap: Default of `final_logit_softcapping`.
    """
    for name in ("use_bidirectional_attention", "mlp_bias"):
        if reader.values.get(name) is not None:
            reader.refuse_unless(**{name: False})
    return reader.read(
        Config,
        layers=layers,
        logits_cap=read_cap(reader, "final_logit_softcapping", logits_cap),
        has_head_norms=has_head_norms,
    )


def read_cap(reader: ConfigReader, name: str, default: float | None) -> float | None:
    """A soft cap; null switches it off.

    Raises:
        CheckpointError: not positive.
    """
    if reader.values.get(name, default) is None:
        return None
    return read_positive(reader, name, default or 0.0)


def read_positive(reader: ConfigReader, name: str, default: float) -> float:
    """A number above 0.

    Raises:
        CheckpointError: another number.
    """
    value = reader.number(name, default)
    if value <= 0:
        raise CheckpointError(f"{reader.place}: {name} must be positive, not {value:g}")
    return value


# ---------------------------------------------------------------------------------------- blocks


class Block(nn.Module):
    """Causal self-attention and gated MLP, each between two norms (§2, table 1)."""

    def __init__(self, config: Config, heads: Heads) -> None:
        super().__init__()
        norm = partial(RMSNorm, eps=config.norm_epsilon, offset=1.0)
        self.attention_norm = norm(config.width)
        self.attention = CachedAttention(heads, norm if config.has_head_norms else None)
        self.attention_out_norm = norm(config.width)
        self.mlp_norm = norm(config.width)
        self.mlp = GatedMLP(config.width, config.mlp_width, config.activation)
        self.mlp_out_norm = norm(config.width)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        past: KeyValue,
        cross: KeyValue | None = None,
        source: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """(R, T, D) → (R, T, D) and the layer's cache; there is no source to attend to."""
        attended, present = self.attention(self.attention_norm(x), past, rows, bias)
        x = x + self.attention_out_norm(attended)
        return x + self.mlp_out_norm(self.mlp(self.mlp_norm(x))), present


# --------------------------------------------------------------------------------------- network


class Gemma(llama.Llama):
    """Llama with other blocks, scaled embeddings and, in Gemma 2, a cap on its logits."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, Block)
        self.scale = config.width**0.5
        self.logits_cap = config.logits_cap
        self.norm = RMSNorm(config.width, config.norm_epsilon, offset=1.0)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, T) → (R, T, D)."""
        return self.tokens(tokens) * self.scale

    def logits(self, hidden: Tensor) -> Tensor:
        """(R, D) → (R, V)."""
        logits = super().logits(hidden)
        if self.logits_cap is None:
            return logits
        return self.logits_cap * (logits / self.logits_cap).tanh()  # between both caps, in order


# ----------------------------------------------------------------------------------------- names


def names(config: Config) -> Names:
    """`transformers`' names → ours: Llama's, with norms on both sides."""
    theirs, ours = "model.layers.*", "blocks.*"
    return llama.NAMES | {
        f"{theirs}.post_attention_layernorm": f"{ours}.attention_out_norm",
        f"{theirs}.pre_feedforward_layernorm": f"{ours}.mlp_norm",
        f"{theirs}.post_feedforward_layernorm": f"{ours}.mlp_out_norm",
    }


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gemma2", read_config, Gemma, names)
