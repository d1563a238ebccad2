"""Twins of `export.models.decoders.gpt`."""

from __future__ import annotations

from tests.export.twin import TINY_GPT, tiny_twin

GPT1 = tiny_twin(
    "transformers:OpenAIGPTLMHeadModel",
    TINY_GPT | {"pad_token_id": 0},
    {
        "odd": {"n_embd": 30, "n_head": 3, "layer_norm_epsilon": 1e-3},
        "untied": {"tie_word_embeddings": False, "afn": "relu", "n_layer": 1},
    },
)
GPT2 = tiny_twin(
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
        "answers": {"n_embd": 30, "n_head": 3, "scale_attn_by_inverse_layer_idx": True},
    },
    heads={"answers": "transformers:GPT2ForQuestionAnswering"},
)
_TINY_NEO = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 3,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
GPT_NEO = tiny_twin(
    "transformers:GPTNeoForCausalLM",
    _TINY_NEO,
    {
        "odd": {
            "hidden_size": 30,
            "num_heads": 3,
            "intermediate_size": 44,
            "layer_norm_epsilon": 1e-3,
        },
        "local first": {
            "num_layers": 3,
            "attention_types": [[["local"], 2], [["global"], 1]],
            "activation_function": "relu",
            "tie_word_embeddings": False,
        },
        "answers": {"activation_function": "relu"},
    },
    heads={"answers": "transformers:GPTNeoForQuestionAnswering"},
)
_TINY_OPT = {
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
OPT = tiny_twin(
    "transformers:OPTForCausalLM",
    _TINY_OPT,
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
        "answers": {"word_embed_proj_dim": 20, "tie_word_embeddings": False},
    },
    heads={"answers": "transformers:OPTForQuestionAnswering"},
)
