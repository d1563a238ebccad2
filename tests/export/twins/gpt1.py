"""Twins of `export.models.decoders.gpt1`."""

from __future__ import annotations

from tests.export.twin import TINY_GPT, tiny_twin

TWIN = tiny_twin(
    "transformers:OpenAIGPTLMHeadModel",
    TINY_GPT | {"pad_token_id": 0},
    {
        "odd": {"n_embd": 30, "n_head": 3, "layer_norm_epsilon": 1e-3},
        "untied": {"tie_word_embeddings": False, "afn": "relu", "n_layer": 1},
    },
)
