"""Twins of `export.models.decoders.llama`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ODD = {
    "hidden_size": 36,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "rms_norm_eps": 1e-3,
}
TINY_INNER = TINY | {"model_type": "llama", "max_position_embeddings": 64, "pad_token_id": 0}
"""Inside a model that reads images."""
NARROW = {"hidden_size": 30, "num_attention_heads": 6, "head_dim": 10, "rms_norm_eps": 1e-3}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 1.2,
    "beta_slow": 0.2,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "short_factor": [1.0, 1.1, 1.3, 1.8],
    "long_factor": [1.0, 2.0, 4.0, 8.0],
    "original_max_position_embeddings": 32,
}
LLAMA = tiny_twin(
    "transformers:LlamaForCausalLM",
    TINY,
    {
        "odd": {
            **NARROW,
            "rope_parameters": _LLAMA3,
            "tie_word_embeddings": True,
        },
        "biased": {
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
            "hidden_act": "gelu",
            "eos_token_id": [2, 3],
        },
        "rotated by the operator": {"head_dim": 16, "num_key_value_heads": None},
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
        "yarn": {"head_dim": 12, "rope_parameters": _YARN},
        "longrope": {"max_position_embeddings": 96, "rope_parameters": _LONGROPE},
        "dynamic": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0}
        },
        "mistral": {"model_type": "mistral", "sliding_window": 3, "head_dim": 10},
        "mistral without a window": {"model_type": "mistral", "sliding_window": None},
        "answers": {**NARROW, "rope_parameters": _LLAMA3},
        "answers of mistral": {"model_type": "mistral", "sliding_window": 3, "head_dim": 10},
    },
    references={
        "mistral": "transformers:MistralForCausalLM",
        "mistral without a window": "transformers:MistralForCausalLM",
    },
    heads={
        "answers": "transformers:LlamaForQuestionAnswering",
        "answers of mistral": "transformers:MistralForQuestionAnswering",
    },
)
QWEN2 = tiny_twin(
    "transformers:Qwen2ForCausalLM",
    TINY,
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
        "answers": {
            "use_sliding_window": True,
            "sliding_window": 3,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    },
    heads={"answers": "transformers:Qwen2ForQuestionAnswering"},
)
QWEN3 = tiny_twin(
    "transformers:Qwen3ForCausalLM",
    TINY,
    {
        "plain": {"head_dim": 16},
        "odd": {
            **ODD,
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
        "answers": ODD,
    },
    heads={"answers": "transformers:Qwen3ForQuestionAnswering"},
)
SMOLLM3 = tiny_twin(
    "transformers:SmolLM3ForCausalLM",
    TINY | {"pad_token_id": 0},
    {
        "plain": {"no_rope_layer_interval": 2},
        "odd": {
            **ODD,
            "no_rope_layers": [0, 1],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        "every fourth layer, windows, untied": {
            "num_hidden_layers": 5,
            "use_sliding_window": True,
            "sliding_window": 3,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": False,
        },
        "answers": {**ODD, "no_rope_layers": [0, 1]},
    },
    heads={"answers": "transformers:SmolLM3ForQuestionAnswering"},
)
GRANITE = tiny_twin(
    "transformers:GraniteForCausalLM",
    TINY,
    {
        "odd": {
            **NARROW,
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.4,
            "residual_multiplier": 0.7,
            "logits_scaling": 2.5,
            "tie_word_embeddings": True,
        },
        "biased": {"attention_bias": True, "mlp_bias": True, "embedding_multiplier": 12},
    },
)
OLMO = tiny_twin(
    "transformers:OlmoForCausalLM",
    TINY | {"pad_token_id": 0},
    {
        "odd": {"hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 1},
        "tied": {"attention_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu"},
    },
)
STABLELM = tiny_twin(
    "transformers:StableLmForCausalLM",
    TINY,
    {
        "odd": {
            "hidden_size": 36,
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "layer_norm_eps": 1e-3,
            "use_qkv_bias": True,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 100.0,
                "factor": 3.0,
                "partial_rotary_factor": 0.5,
            },
        },
        "tied, all rotates": {"partial_rotary_factor": 1.0, "tie_word_embeddings": True},
    },
)
PHI3 = tiny_twin(
    "transformers:Phi3ForCausalLM",
    TINY | {"pad_token_id": 0},
    {
        "odd": {
            "hidden_size": 36,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-3,
            "sliding_window": 3,
            "tie_word_embeddings": True,
        },
        "longrope": {"max_position_embeddings": 96, "rope_parameters": _LONGROPE},
        "half rotates": {
            "num_key_value_heads": None,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            },
        },
    },
)
STARCODER2 = tiny_twin(
    "transformers:Starcoder2ForCausalLM",
    TINY,
    {
        "odd": {
            "hidden_size": 36,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "norm_epsilon": 1e-3,
            "sliding_window": 3,
        },
        "bare, untied": {"use_bias": False, "tie_word_embeddings": False, "hidden_act": "relu"},
    },
)
