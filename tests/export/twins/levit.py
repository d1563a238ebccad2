"""Twins of `export.models.vision.levit`."""

from __future__ import annotations

from export.models.vision.levit import TEACHER
from tests.export.twin import LABELS, twin_with_heads

_TINY = {
    "hidden_sizes": [16, 24, 32],
    "num_attention_heads": [2, 3, 4],
    "depths": [1, 1, 1],
    "key_dim": [4, 4, 4],
    "attention_ratio": [2, 2, 2],
    "mlp_ratio": [2, 2, 2],
    "image_size": 48,
}
TWIN = twin_with_heads(
    {
        "odd": (
            TEACHER,
            _TINY
            | LABELS
            | {
                "hidden_sizes": [24, 20, 24],
                "num_attention_heads": [3, 1, 1],
                "key_dim": [6, 5, 48],  # wide: else the last stage attends to all patches alike
                "attention_ratio": [1, 1, 1],
                "mlp_ratio": [1, 1, 1],
                "image_size": 144,  # grids of 9, 5 and 3
            },
        ),
        "one-head": ("LevitForImageClassification", _TINY | LABELS),
        "pooled": (
            "LevitModel",
            _TINY | {"depths": [2, 1, 1], "attention_ratio": [1, 3, 2], "mlp_ratio": [1, 3, 2]},
        ),
    }
)
