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
TINY_NEWER = TINY | {"query_pre_attn_scalar": 20, "sliding_window": 3}
GEMMA = tiny_twin(
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
GEMMA2 = tiny_twin(
    "transformers:Gemma2ForCausalLM",
    TINY_NEWER,
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
_TWO_BASES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
GEMMA3 = tiny_twin(
    "transformers:Gemma3ForCausalLM",
    TINY_NEWER,
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
