"""Twins of `export.models.dual_encoders.siglip`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, TINY_TEXT, Twin

_TINY_TEXT = TINY_TEXT | {
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_attention_heads": 2,
    "max_position_embeddings": 12,
    "layer_norm_eps": 1e-3,
}
_TINY_IMAGE = TINY_IMAGE | {"layer_norm_eps": 1e-3}
TWIN = Twin(
    reference="transformers:SiglipModel",
    configs={
        "plain": {"text_config": _TINY_TEXT, "vision_config": _TINY_IMAGE},
        "odd": {
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "num_attention_heads": 3, "projection_size": 36},
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "patch_size": 12},
        },
        "other-activations": {
            "text_config": _TINY_TEXT | {"hidden_act": "gelu", "num_hidden_layers": 1},
            "vision_config": _TINY_IMAGE | {"hidden_act": "relu", "num_attention_heads": 3},
        },
    },
    outputs={"image": "image_embeds", "text": "text_embeds"},
)

_PATCHES = {key: value for key, value in _TINY_IMAGE.items() if key != "image_size"} | {
    "num_patches": 16,
    "patch_size": 4,
}
SIGLIP2 = Twin(
    reference="transformers:Siglip2Model",
    configs={
        "plain": {"text_config": _TINY_TEXT, "vision_config": _PATCHES},
        "odd": {
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "num_attention_heads": 3, "projection_size": 36},
            "vision_config": _PATCHES | {"hidden_size": 36, "patch_size": 3, "num_patches": 25},
        },
    },
    outputs=TWIN.outputs,
    images={"odd": (12, 10)},
    resize="patches",
)
