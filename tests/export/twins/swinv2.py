"""Twins of `export.models.vision.swinv2`."""

from __future__ import annotations

from tests.export.twin import LABELS, twin_with_heads

_TINY = {
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 3,
    "image_size": 48,
    "patch_size": 4,
    "mlp_ratio": 2.0,
}
_ODD = {"image_size": 60, "patch_size": 6, "layer_norm_eps": 1e-3, "qkv_bias": False}
_CLASSIFIER, _ENCODER = "Swinv2ForImageClassification", "Swinv2Model"
TWIN = twin_with_heads(
    {
        "odd": (_CLASSIFIER, _TINY | LABELS | _ODD | {"pretrained_window_sizes": [5, 4, 0, 0]}),
        "plain": (_ENCODER, _TINY),
        "one window": (_ENCODER, _TINY | {"window_size": 7, "image_size": 40}),
    }
)
