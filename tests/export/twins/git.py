"""Twins of `export.models.captioners.git`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, tiny_twin

_TINY_IMAGE = TINY_IMAGE | {"num_hidden_layers": 1, "layer_norm_eps": 1e-3}
_TINY = {
    "vocab_size": 64,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 44,
    "max_position_embeddings": 32,
    "layer_norm_eps": 1e-3,
    "bos_token_id": 62,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "vision_config": _TINY_IMAGE,
}
TWIN = tiny_twin(
    "transformers:GitForCausalLM",
    _TINY,
    {
        "plain": {"hidden_size": 24, "num_hidden_layers": 1},
        "odd": {},
        "tied": {"tie_word_embeddings": True, "hidden_act": "relu", "num_hidden_layers": 1}
        | {"vision_config": _TINY_IMAGE | {"hidden_act": "gelu", "num_attention_heads": 3}},
    },
)
