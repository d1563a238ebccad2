"""Twins of `export.models.vision.convnext`."""

from __future__ import annotations

from tests.export.twin import LABELS, twin_with_heads

_TINY = {
    "hidden_sizes": [10, 14, 18],
    "depths": [1, 2, 1],
    "num_stages": 3,
    "image_size": [44, 56],
    "patch_size": 4,
}
_ODD = _TINY | LABELS | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3, "patch_size": 3}
CONVNEXT, CONVNEXT_V2 = (
    twin_with_heads(
        {
            "odd": (f"{name}ForImageClassification", _ODD),
            "plain": (f"{name}Model", _TINY | {"layer_scale_init_value": 0.0}),
        }
    )
    for name in ("ConvNext", "ConvNextV2")
)
