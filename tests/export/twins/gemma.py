"""Twins of `export.models.decoders.gemma`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llama

TINY = llama.TINY | {
    "head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
TWIN = tiny_twin(
    "transformers:GemmaForCausalLM",
    TINY,
    {
        "odd": {
            "hidden_size": 30,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": 10,
            "rms_norm_eps": 1e-3,
        },
        "of the first releases": {"hidden_act": "gelu", "attention_bias": True},
        "untied": {"tie_word_embeddings": False, "hidden_act": "relu", "num_key_value_heads": 4},
    },
)
