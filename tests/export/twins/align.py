"""Twins of `export.models.dual_encoders.align`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, Twin

_IMAGE = {
    "image_size": 48,
    "width_coefficient": 1.0,
    "depth_coefficient": 1.0,
    "depth_divisor": 4,
    "in_channels": [32, 8, 12],
    "out_channels": [8, 12, 16],
    "kernel_sizes": [3, 5, 3],
    "strides": [1, 2, 2],
    "num_block_repeats": [1, 2, 1],
    "expand_ratios": [1, 3, 2],
    "hidden_dim": 48,
}
_ODD_IMAGE = _IMAGE | {
    "image_size": [43, 50],
    "width_coefficient": 0.7,
    "depth_coefficient": 1.2,
    "depth_divisor": 5,
    "depthwise_padding": [2],
    "squeeze_expansion_ratio": 0.4,
    "hidden_act": "gelu",
    "batch_norm_eps": 0.01,
}
TWIN = Twin(
    reference="transformers:AlignModel",
    configs={
        "odd": {
            "text_config": TINY_TEXT | ODD_TEXT | {"type_vocab_size": 3, "hidden_act": "relu"},
            "vision_config": _ODD_IMAGE,
            "projection_dim": 15,
        },
        "plain": {"text_config": TINY_TEXT, "vision_config": _IMAGE, "projection_dim": 16},
    },
    outputs={"image": "image_embeds", "text": "text_embeds"},
)
