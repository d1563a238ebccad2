"""Twins of `export.models.vision_language.qwen2_vl`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llama

_ROPE = {"rope_type": "default", "rope_theta": 1000.0}
TINY_TEXT = {
    **llama.TINY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]},
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
_TINY_IMAGE = {
    "embed_dim": 24,
    "hidden_size": 32,
    "num_heads": 2,
    "depth": 2,
    "mlp_ratio": 2,
    "patch_size": 4,
}
_TINY = {
    "text_config": TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "image_token_id": 61,
    "video_token_id": 60,
}
QWEN2_VL = tiny_twin(
    "transformers:Qwen2VLForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": {
                **TINY_TEXT,
                "hidden_size": 60,
                "num_attention_heads": 6,
                "num_key_value_heads": 3,
                "rms_norm_eps": 1e-3,
                "rope_parameters": {**_ROPE, "rope_theta": 500.0, "mrope_section": [1, 2, 2]},
            },
            "vision_config": {
                **_TINY_IMAGE,
                "embed_dim": 36,
                "num_heads": 3,
                "hidden_size": 60,
                "mlp_ratio": 1,
                "patch_size": 5,
                "hidden_act": "gelu",
            },
        },
        "tied, three sections and windows": {
            "text_config": {
                **TINY_TEXT,
                "tie_word_embeddings": True,
                "use_sliding_window": True,
                "sliding_window": 3,
                "max_window_layers": 1,
                "hidden_size": 48,
                "num_attention_heads": 4,
                "rope_parameters": {**_ROPE, "mrope_section": [2, 2, 2]},
            },
            "vision_config": {
                **_TINY_IMAGE,
                "hidden_size": 48,
                "spatial_merge_size": 1,
                "temporal_patch_size": 1,
            },
            "tie_word_embeddings": True,
        },
        "yarn": {
            "text_config": {**TINY_TEXT, "rope_parameters": {**_YARN, "mrope_section": [1, 1, 2]}},
        },
    },
)


TINY_IMAGE = {
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 20,
    "num_heads": 2,
    "depth": 2,
    "patch_size": 4,
}
ODD_IMAGE = {
    "hidden_size": 36,
    "out_hidden_size": 60,
    "intermediate_size": 26,
    "num_heads": 3,
    "depth": 3,
    "patch_size": 5,
    "hidden_act": "gelu",
}
_TINY_WINDOWED = {**TINY_IMAGE, "window_size": 8, "fullatt_block_indexes": [1]}
_ODD = QWEN2_VL.configs["odd"]
QWEN2_5_VL = tiny_twin(
    "transformers:Qwen2_5_VLForConditionalGeneration",
    {**QWEN2_VL.configs["plain"], "vision_config": _TINY_WINDOWED},
    {
        "odd": {
            "text_config": _ODD["text_config"],
            "vision_config": {**ODD_IMAGE, "window_size": 39, "fullatt_block_indexes": [0]},
        },
        "every patch by itself": {
            "vision_config": {**_TINY_WINDOWED, "spatial_merge_size": 1, "window_size": 4},
        },
    },
)
