"""Twins of `export.models.decoders.gemma2`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llama

TINY = llama.TINY | {
    "head_dim": 16,
    "query_pre_attn_scalar": 20,
    "sliding_window": 3,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
TWIN = tiny_twin(
    "transformers:Gemma2ForCausalLM",
    TINY,
    {
        "plain": {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
        "odd": {
            **llama.ODD,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 4.0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "uncapped": {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "layer_types": ["full_attention", "sliding_attention"],
            "eos_token_id": [1, 3],
        },
    },
)
