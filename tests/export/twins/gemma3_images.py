"""Twins of `export.models.vision_language.gemma3_images`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, tiny_twin
from tests.export.twins import gemma

_TINY_IMAGE = TINY_IMAGE | {
    "model_type": "siglip_vision_model",
    "image_size": 16,
    "patch_size": 4,
    "layer_norm_eps": 1e-3,
}
_TINY_TEXT = {
    **gemma.GEMMA3.configs["plain"],
    "model_type": "gemma3_text",
    "max_position_embeddings": 64,
}
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE | {"vision_use_head": False},
    "mm_tokens_per_image": 4,
    "image_token_index": 61,
    "boi_token_index": 59,
    "eoi_token_index": 60,
}
TWIN = tiny_twin(
    "transformers:Gemma3ForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": {**_TINY_TEXT, **gemma.GEMMA3.configs["odd"], "sliding_window": 2},
            "vision_config": _TINY_IMAGE
            | {"hidden_size": 36, "num_attention_heads": 3, "image_size": 15, "patch_size": 3},
        },
        "wide window, untied": {
            "text_config": _TINY_TEXT
            | {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
            "tie_word_embeddings": False,
        },
    },
)
