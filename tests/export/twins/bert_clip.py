"""Twins of `export.models.dual_encoders.bert_clip`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_IMAGE, TINY_TEXT, Twin

_ODD_IMAGE = TINY_IMAGE | {"hidden_size": 36, "patch_size": 12, "layer_norm_eps": 1e-3}
_OUTPUTS = {"image": "image_embeds", "text": "text_embeds"}
CHINESE_CLIP = Twin(
    reference="transformers:ChineseCLIPModel",
    configs={
        "odd": {
            "text_config": TINY_TEXT | ODD_TEXT | {"type_vocab_size": 3, "hidden_act": "relu"},
            "vision_config": _ODD_IMAGE,
            "projection_dim": 7,
        },
        "plain": {"text_config": TINY_TEXT, "vision_config": TINY_IMAGE},
    },
    outputs=_OUTPUTS,
)

_TINY_ALT = TINY_TEXT | {"max_position_embeddings": 18, "type_vocab_size": 1}
ALTCLIP = Twin(
    reference="transformers:AltCLIPModel",
    configs={
        "odd": {
            "text_config": TINY_TEXT
            | ODD_TEXT
            # the padding token is one that texts of the tests contain
            | {"project_dim": 21, "pad_token_id": 31, "max_position_embeddings": 48},
            "vision_config": _ODD_IMAGE | {"hidden_act": "gelu"},
            "projection_dim": 7,
        },
        "plain": {
            "text_config": _TINY_ALT | {"project_dim": 20},
            "vision_config": TINY_IMAGE,
            "projection_dim": 24,
        },
    },
    outputs=_OUTPUTS,
)

_EFFICIENT = {
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
_ODD_EFFICIENT = _EFFICIENT | {
    "image_size": [43, 50],
    "width_coefficient": 0.7,
    "depth_coefficient": 1.2,
    "depth_divisor": 5,
    "depthwise_padding": [2],
    "squeeze_expansion_ratio": 0.4,
    "hidden_act": "gelu",
    "batch_norm_eps": 0.01,
}
ALIGN = Twin(
    reference="transformers:AlignModel",
    configs={
        "odd": {
            "text_config": TINY_TEXT | ODD_TEXT | {"type_vocab_size": 3, "hidden_act": "relu"},
            "vision_config": _ODD_EFFICIENT,
            "projection_dim": 15,
        },
        "plain": {"text_config": TINY_TEXT, "vision_config": _EFFICIENT, "projection_dim": 16},
    },
    outputs=_OUTPUTS,
)
