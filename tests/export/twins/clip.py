"""Twins of `export.models.dual_encoders.clip`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, TINY_TEXT, Twin

_TINY_TEXT = TINY_TEXT | {"bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 1}
_OUTPUTS = {"image": "image_embeds", "text": "text_embeds"}
TWIN = Twin(
    reference="transformers:CLIPModel",
    configs={
        "plain": {"text_config": _TINY_TEXT, "vision_config": TINY_IMAGE, "projection_dim": 20},
        "legacy-end": {
            "text_config": _TINY_TEXT
            | {"eos_token_id": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
            "vision_config": TINY_IMAGE | {"hidden_act": "gelu", "num_attention_heads": 3},
            "projection_dim": 24,
        },
        "odd": {
            "text_config": _TINY_TEXT | {"hidden_size": 30, "num_attention_heads": 3},
            "vision_config": TINY_IMAGE
            | {"hidden_size": 36, "num_attention_heads": 2, "patch_size": 12},
            "projection_dim": 7,
        },
    },
    outputs=_OUTPUTS,
)

METACLIP_2 = Twin(
    reference="transformers:MetaClip2Model",
    configs={
        "odd": {
            # a token that is within one text of the tests, and not the largest of any
            "text_config": TWIN.configs["odd"]["text_config"] | {"eos_token_id": 45},
            "vision_config": TWIN.configs["odd"]["vision_config"] | {"layer_norm_eps": 1e-3},
            "projection_dim": 7,
        },
        "as published": {
            "text_config": _TINY_TEXT | {"eos_token_id": 2, "hidden_act": "gelu"},
            "vision_config": TINY_IMAGE | {"hidden_act": "gelu"},
            "projection_dim": 20,
        },
    },
    outputs=_OUTPUTS,
)
