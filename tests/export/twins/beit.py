"""Twins of `export.models.vision.beit`."""

from __future__ import annotations

from tests.export.twin import LABELS, TINY_IMAGE, twin_with_heads

_TINY = TINY_IMAGE | {"use_relative_position_bias": True}
_ODD = {"hidden_size": 30, "num_attention_heads": 3, "image_size": 28, "patch_size": 7}
_ODD |= {"layer_norm_eps": 1e-3, "hidden_act": "relu", "use_mask_token": True}
_CLASSIFIER, _ENCODER = "BeitForImageClassification", "BeitModel"
TWIN = twin_with_heads(
    {
        "odd": (_CLASSIFIER, _TINY | LABELS | _ODD),
        "class token": (_CLASSIFIER, _TINY | LABELS | {"use_mean_pooling": False}),
        "embedded": (_ENCODER, _TINY),
    }
)
