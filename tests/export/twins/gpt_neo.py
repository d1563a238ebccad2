"""Twins of `export.models.decoders.gpt_neo`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

_TINY = {
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
TWIN = tiny_twin(
    "transformers:GPTNeoForCausalLM",
    _TINY,
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
    },
)
