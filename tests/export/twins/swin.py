"""Twins of `export.models.vision.swin`."""

from __future__ import annotations

from export.models.vision.swin import HEADS
from tests.export.twin import LABELS, twin_with_heads

TINY = {
    "embed_dim": 12,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 4,
    "mlp_ratio": 2.0,
    "image_size": 32,
    "patch_size": 4,
}
_CLASSIFIER, _ENCODER = HEADS
TWIN = twin_with_heads(
    {
        "odd": (
            _CLASSIFIER,
            TINY
            | LABELS
            | {
                "qkv_bias": False,
                "layer_norm_eps": 1e-3,
                "window_size": 3,
                "image_size": [30, 46],
                "use_absolute_embeddings": True,
                "patch_size": [2, 2],
            },
        ),
        "plain": (_CLASSIFIER, TINY | LABELS | {"hidden_act": "gelu_new"}),
        "padded": (
            _ENCODER,
            TINY | {"window_size": 3, "depths": [2, 1, 2], "num_heads": [1, 2, 4]},
        ),
        "resized": (_CLASSIFIER, TINY | LABELS | {"use_absolute_embeddings": True}),
    },
    images={"padded": (53, 90), "resized": (64, 40)},
)
