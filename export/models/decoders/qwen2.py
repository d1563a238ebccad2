"""Qwen2: Llama's shape with biased queries, keys and values.

Papers: Yang et al. 2024, "Qwen2 Technical Report", §2.2 (arXiv 2407.10671); Qwen2.5 (arXiv
2412.15115) has the same network. The network is in `llama.py`.
Checkpoints: `model_type: qwen2`.

Differences from `transformers`: see `llama.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from export.config.config_reader import ConfigReader
from export.decoder_graphs.language_model import language_model
from export.layers.attention.heads import Heads
from export.models.decoders import llama

# ---------------------------------------------------------------------------------------- config

POSITIONS = 32768
"""Default of `max_position_embeddings`."""


def read_config(values: Mapping[str, Any]) -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = llama.open_config(values, max_position_embeddings=POSITIONS)
    reader.refuse_unless(mlp_bias=False)
    heads = replace(llama.read_heads(reader), bias=True, out_bias=False)
    return llama.read_shape(reader, set_windows(reader, heads))


def set_windows(reader: ConfigReader, heads: Heads) -> tuple[Heads, ...]:
    """The heads of each layer: with `use_sliding_window`, the upper ones attend to a window."""
    lowest = reader.given.get("max_window_layers", 28)
    window = None
    if reader.flag("use_sliding_window", False) and reader.values.get("sliding_window", 4096):
        window = reader.integer("sliding_window", 4096)
    sliding = llama.sliding_layers(reader, lambda layer: window is not None and layer >= lowest)
    return tuple(replace(heads, window=window) if slides else heads for slides in sliding)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("qwen2", read_config, llama.Llama, llama.names)
