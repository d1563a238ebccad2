"""GPT-Neo: GPT-2's blocks, every second one with local attention, scores not scaled.

Source: Black et al. 2021, "GPT-Neo: Large Scale Autoregressive Language Modeling with
Mesh-TensorFlow" (doi 10.5281/zenodo.5297715); local attention as in Beltagy et al. 2020,
"Longformer", §3.1 (arXiv 2004.05150), backwards only.
Checkpoints: `model_type: gpt_neo` (`GPTNeoForCausalLM`). The network is in `gpt2.py`.

Differences from `transformers`: inference only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.config.config_reader import ConfigReader
from export.config.weight_names import Names, projections, with_and_without
from export.decoder_graphs.language_model import DecoderConfig, language_model
from export.layers.attention.heads import Heads
from export.models.decoders.gpt2 import GPT2
from inference.errors import CheckpointError

# ---------------------------------------------------------------------------------------- config


_NAMES = {"num_attention_heads": "num_heads", "hidden_act": "activation_function"}
_DEFAULTS = {"max_position_embeddings": 2048, "hidden_act": "gelu_new"}


def read_config(values: Mapping[str, Any]) -> DecoderConfig:
    """The configuration."""
    reader = ConfigReader(values, defaults=_DEFAULTS, names=_NAMES)
    heads = reader.read(Heads, bias=False, scale=1.0)
    window, kinds = reader.integer("window_size", 256), _attention_kinds(reader)
    return reader.read(
        DecoderConfig,
        layers=tuple(replace(heads, window=window if kind == "local" else None) for kind in kinds),
        mlp_width=reader.integer("intermediate_size", 4 * heads.model_width),
    )


def _attention_kinds(reader: ConfigReader) -> list[str]:
    """`global` or `local` for each layer: `attention_types` is [[kinds, how often], …].

    Files also list them by layer, in `attention_layers`, which takes precedence.

    Raises:
        CheckpointError: another kind, or not one for each layer.
    """
    count = reader.layers("num_layers")
    types = reader.values.get("attention_types") or [[["global", "local"], 12]]
    try:
        kinds = [kind for group, times in types for _ in range(times) for kind in group]
    except (TypeError, ValueError):
        kinds = []
    kinds = reader.values.get("attention_layers") or kinds
    is_list = isinstance(kinds, list) and len(kinds) == count
    if not is_list or not all(kind in ["global", "local"] for kind in kinds):
        raise CheckpointError(
            f"{reader.place}: attention_types and attention_layers must give `global` or "
            f"`local` for each of {count} layers, not {types!r} and "
            f"{reader.values.get('attention_layers')!r}"
        )
    return kinds


# ----------------------------------------------------------------------------------------- names


def names(config: DecoderConfig) -> Names:
    """`transformers`' names → ours; a base model's lack the prefix `transformer.`."""
    theirs, ours = "h.*", "blocks.*"
    table: Names = {
        "wte": "tokens",
        "wpe": "positions",
        f"{theirs}.ln_1": f"{ours}.attention_norm",
        **projections(f"{theirs}.attn.attention", f"{ours}.attention"),
        f"{theirs}.attn.attention.bias": None,  # causal masks that old versions stored
        f"{theirs}.attn.attention.masked_bias": None,
        f"{theirs}.ln_2": f"{ours}.mlp_norm",
        f"{theirs}.mlp.c_fc": f"{ours}.mlp.up",
        f"{theirs}.mlp.c_proj": f"{ours}.mlp.down",
        "ln_f": "norm",
    }
    return with_and_without("transformer.", table)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("gpt_neo", read_config, GPT2, names)
