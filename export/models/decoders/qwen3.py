"""Qwen3: Llama's shape with norms of each head's queries and keys.

Paper: Yang et al. 2025, "Qwen3 Technical Report", §2 (arXiv 2505.09388); the norms are those of
Dehghani et al. 2023 (arXiv 2302.05442). The network is in `llama.py`.
Checkpoints: `model_type: qwen3`.

Differences from `transformers`: see `llama.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from export.decoder_graphs.language_model import language_model
from export.models.decoders import llama, qwen2

# ---------------------------------------------------------------------------------------- config


def read_config(values: Mapping[str, Any]) -> llama.Config:
    """The configuration; unsupported fields that would change the network are refused."""
    reader = llama.open_config(values, max_position_embeddings=qwen2.POSITIONS, head_dim=128)
    reader.refuse_unless(mlp_bias=False)
    layers = qwen2.set_windows(reader, llama.read_heads(reader))
    return llama.read_shape(reader, layers, has_head_norms=True)


# ----------------------------------------------------------------------------------- declaration

ARCHITECTURE = language_model("qwen3", read_config, llama.Llama, llama.names)
