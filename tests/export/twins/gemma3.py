"""Twins of `export.models.decoders.gemma3`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import gemma2, llama

_TWO_BASES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
TWIN = tiny_twin(
    "transformers:Gemma3ForCausalLM",
    gemma2.TINY,
    {
        "plain": {"layer_types": ["sliding_attention", "full_attention"]},
        "odd": {
            **llama.ODD,
            "rope_parameters": _TWO_BASES,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "every sixth layer": {
            "num_hidden_layers": 7,
            "final_logit_softcapping": 4.0,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    },
)
