"""Twins of `export.models.vision.segformer`."""

from __future__ import annotations

from tests.export.twin import LABELS, twin_with_heads

_TINY = LABELS | {"image_size": [64, 96], "hidden_sizes": [8, 12, 20, 24]}
_ODD = {
    "num_encoder_blocks": 3,
    "image_size": [52, 44],
    "hidden_sizes": [10, 12, 21],
    "num_attention_heads": [1, 2, 3],
    "depths": [1, 2, 1],
    "sr_ratios": [3, 2, 1],
    "patch_sizes": [5, 3, 3],
    "strides": [3, 2, 2],
    "mlp_ratios": [2, 3, 2],
    "hidden_act": "relu",
}
TWIN = twin_with_heads(
    {
        "odd": ("SegformerForImageClassification", _TINY | _ODD),
        "plain": (
            "SegformerForImageClassification",
            _TINY | {"num_attention_heads": [1, 2, 5, 8]},
        ),
    }
)
