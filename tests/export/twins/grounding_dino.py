"""Twins of `export.models.detectors.grounding_dino`."""

from __future__ import annotations

from typing import Any

from tests.export.twin import ODD_TEXT, TINY_TEXT, Twin

_TEXT = TINY_TEXT | {"model_type": "bert", "vocab_size": 1040}
_IMAGE = {
    "model_type": "swin",
    "embed_dim": 12,
    "depths": [1, 2, 1],
    "num_heads": [1, 2, 3],
    "window_size": 4,
    "mlp_ratio": 2,
    "image_size": 64,
    "out_indices": [2, 3],
}
_PLAIN: dict[str, Any] = {
    "text_config": _TEXT,
    "backbone_config": _IMAGE,
    "d_model": 32,
    "num_queries": 9,
    "num_feature_levels": 3,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_n_points": 2,
    "decoder_n_points": 3,
    "max_text_len": 16,
}
TWIN = Twin(
    reference="transformers:GroundingDinoForObjectDetection",
    configs={
        "plain": _PLAIN,
        "odd": _PLAIN
        | {
            "text_config": _TEXT | ODD_TEXT,
            "backbone_config": _IMAGE
            | {"window_size": 3, "qkv_bias": False, "image_size": [60, 84], "out_indices": [1, 3]},
            "d_model": 64,
            "num_queries": 7,
            "num_feature_levels": 4,
            "encoder_layers": 1,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 40,
            "activation_function": "gelu",
            "layer_norm_eps": 1e-3,
            "decoder_bbox_embed_share": False,
            "positional_embedding_temperature": 30,
        },
    },
)
