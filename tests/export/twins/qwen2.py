"""Twins of `export.models.decoders.qwen2`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llama

TWIN = tiny_twin(
    "transformers:Qwen2ForCausalLM",
    llama.TINY,
    {
        "odd": {
            "hidden_size": 36,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "rms_norm_eps": 1e-3,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "listed windows": {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "window switched off": {"sliding_window": 2, "max_window_layers": 0},
    },
)
