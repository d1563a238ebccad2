"""Twins of `export.models.vision_language.gemma_images`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, tiny_twin
from tests.export.twins import gemma

_TINY_IMAGE = TINY_IMAGE | {
    "model_type": "siglip_vision_model",
    "image_size": 16,
    "layer_norm_eps": 1e-3,
    "vision_use_head": False,
}
_TINY_TEXT = gemma.TINY | {"model_type": "gemma", "max_position_embeddings": 64}
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "image_token_index": 61,
    "projection_dim": 32,
    "hidden_size": 32,
}
PALIGEMMA = tiny_twin(
    "transformers:PaliGemmaForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": {
                **gemma.GEMMA.configs["odd"],
                "model_type": "gemma",
                "max_position_embeddings": 64,
            },
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "num_attention_heads": 3},
            "projection_dim": 30,
            "hidden_size": 30,
        },
        "gemma2": {
            "text_config": {
                **gemma.GEMMA2.configs["plain"],
                "model_type": "gemma2",
                "max_position_embeddings": 64,
            },
        },
    },
)


_POOLED_IMAGE = TINY_IMAGE | {
    "model_type": "siglip_vision_model",
    "image_size": 16,
    "patch_size": 4,
    "layer_norm_eps": 1e-3,
}
_GEMMA3_TEXT = {
    **gemma.GEMMA3.configs["plain"],
    "model_type": "gemma3_text",
    "max_position_embeddings": 64,
}
TINY_GEMMA3 = {
    "text_config": _GEMMA3_TEXT,
    "vision_config": _POOLED_IMAGE | {"vision_use_head": False},
    "mm_tokens_per_image": 4,
    "image_token_index": 61,
    "boi_token_index": 59,
    "eoi_token_index": 60,
}
GEMMA3 = tiny_twin(
    "transformers:Gemma3ForConditionalGeneration",
    TINY_GEMMA3,
    {
        "odd": {
            "text_config": {**_GEMMA3_TEXT, **gemma.GEMMA3.configs["odd"], "sliding_window": 2},
            "vision_config": _POOLED_IMAGE
            | {"hidden_size": 36, "num_attention_heads": 3, "image_size": 15, "patch_size": 3},
        },
        "wide window, untied": {
            "text_config": _GEMMA3_TEXT
            | {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
            "tie_word_embeddings": False,
        },
    },
)
