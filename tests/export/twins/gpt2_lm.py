"""Twins of `export.models.decoders.gpt2_lm`."""

from __future__ import annotations

from tests.export.twin import TINY_GPT, tiny_twin

TWIN = tiny_twin(
    "transformers:GPT2LMHeadModel",
    TINY_GPT,
    {
        "odd": {"n_embd": 30, "n_head": 3, "n_inner": 44, "layer_norm_epsilon": 1e-3},
        "untied": {
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
            "reorder_and_upcast_attn": True,
            "n_layer": 3,
            "activation_function": "relu",
        },
        "unscaled": {"scale_attn_weights": False, "activation_function": "gelu"},
    },
)
