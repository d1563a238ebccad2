"""Twins of `export.models.vision_language.paligemma`."""

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
TWIN = tiny_twin(
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
