"""Twins of `export.models.vision_language.qwen3_vl`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import qwen2_vl

_ROPE = {"rope_type": "default", "rope_theta": 1000.0, "mrope_interleaved": True}
_TINY_TEXT = {
    **qwen2_vl.TINY_TEXT,
    "head_dim": 8,
    "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]},
}
_TINY_IMAGE = {
    **qwen2_vl.TINY_IMAGE,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [1],
}
TWIN = tiny_twin(
    "transformers:Qwen3VLForConditionalGeneration",
    {
        "text_config": _TINY_TEXT,
        "vision_config": _TINY_IMAGE,
        "image_token_id": 61,
        "video_token_id": 60,
    },
    {
        "odd": {
            "text_config": {
                **_TINY_TEXT,
                "hidden_size": 60,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "head_dim": 14,
                "rms_norm_eps": 1e-3,
                "rope_parameters": {**_ROPE, "rope_theta": 500.0, "mrope_section": [3, 2, 2]},
            },
            "vision_config": {
                **qwen2_vl.ODD_IMAGE,
                "num_position_embeddings": 9,
                "deepstack_visual_indexes": [0, 2],
            },
        },
        "tied, biased, every patch by itself, long sections": {
            "text_config": {
                **_TINY_TEXT,
                "attention_bias": True,
                "rope_parameters": {**_ROPE, "mrope_section": [1, 2, 1]},
            },
            "vision_config": {
                **_TINY_IMAGE,
                "spatial_merge_size": 1,
                "temporal_patch_size": 1,
                "deepstack_visual_indexes": [],
            },
            "tie_word_embeddings": True,
        },
    },
)
