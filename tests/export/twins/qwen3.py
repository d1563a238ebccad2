"""Twins of `export.models.decoders.qwen3`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llama

TWIN = tiny_twin(
    "transformers:Qwen3ForCausalLM",
    llama.TINY,
    {
        "plain": {"head_dim": 16},
        "odd": {
            **llama.ODD,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "biased": {
            "attention_bias": True,
            "head_dim": 12,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
        },
    },
)
