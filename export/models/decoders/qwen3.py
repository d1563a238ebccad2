"""Qwen3: Llama's shape with norms of each head's queries and keys.

Paper: Yang et al. 2025, "Qwen3 Technical Report", §2 (arXiv 2505.09388); the norms are those of
Dehghani et al. 2023 (arXiv 2302.05442). The network is in `llama.py`.
Checkpoints: `model_type: qwen3`.

Differences from `transformers`: see `llama.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.config.config_reader import ConfigReader
from export.decoder_graphs.language_model import language_model
from export.models.decoders import llama, qwen2

# ---------------------------------------------------------------------------------------- config

HEAD_WIDTH = 128
"""Default of `head_dim`."""


def read_config(values: Mapping[str, Any]) -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = ConfigReader(values)
    reader.refuse_unless(mlp_bias=False)
    bias = reader.flag("attention_bias", False)
    heads = llama.read_heads(
        reader, bias=bias, out_bias=bias, head_width=HEAD_WIDTH, positions=qwen2.POSITIONS
    )
    layers = qwen2.set_windows(reader, heads)
    return llama.read_shape(reader, layers, positions=qwen2.POSITIONS, has_head_norms=True)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("qwen3", read_config, llama.Llama, llama.names)
