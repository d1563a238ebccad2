"""Twins of `export.models.decoders.opt`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

_TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "ffn_dim": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "word_embed_proj_dim": 32,
    "pad_token_id": 63,
    "bos_token_id": 2,
    "eos_token_id": 2,
}
TWIN = tiny_twin(
    "transformers:OPTForCausalLM",
    _TINY,
    {
        "odd": {
            "hidden_size": 30,
            "num_attention_heads": 3,
            "word_embed_proj_dim": 20,
            "do_layer_norm_before": False,
        },
        "narrow, norms in front": {"word_embed_proj_dim": 12, "ffn_dim": 44},
        "bare": {
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
            "tie_word_embeddings": False,
        },
        "no final norm": {"_remove_final_layer_norm": True},
    },
)
