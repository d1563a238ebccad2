"""Twins of `export.models.dual_encoders.groupvit`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, TINY_TEXT, Twin

_TEXT = TINY_TEXT | {"bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 1}
_IMAGE = TINY_IMAGE | {
    "depths": [1, 1, 1],
    "num_group_tokens": [6, 3, 0],
    "num_output_groups": [6, 3, 3],
}
TWIN = Twin(
    reference="transformers:GroupViTModel",
    configs={
        "plain": {
            "text_config": _TEXT,
            "vision_config": _IMAGE,
            "projection_dim": 20,
            "projection_intermediate_dim": 28,
        },
        "odd": {
            "text_config": _TEXT | {"hidden_size": 30, "num_attention_heads": 3},
            "vision_config": _IMAGE
            | {
                "hidden_size": 36,
                "num_attention_heads": 3,
                "image_size": [28, 42],
                "patch_size": [7, 14],
                "depths": [2, 1],
                "num_group_tokens": [7, 4],
                "num_output_groups": [7, 3],
                "assign_eps": 0.5,
                "assign_mlp_ratio": [0.7, 2],
                "hidden_act": "quick_gelu",
                "layer_norm_eps": 1e-3,
            },
            "projection_dim": 7,
            "projection_intermediate_dim": 26,
        },
        "legacy-end": {
            "text_config": _TEXT | {"eos_token_id": 2},
            "vision_config": _IMAGE
            | {"depths": [1, 2], "num_group_tokens": [4, 0], "num_output_groups": [3, 0]},
            "projection_dim": 20,
            "projection_intermediate_dim": 28,
        },
    },
    outputs={"image": "image_embeds", "text": "text_embeds"},
)
