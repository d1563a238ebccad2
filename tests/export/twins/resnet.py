"""Twins of `export.models.vision.resnet`."""

from __future__ import annotations

from tests.export.twin import LABELS, twin_with_heads

_TINY = {
    "embedding_size": 10,
    "hidden_sizes": [16, 24],
    "depths": [2, 1],
    "image_size": [52, 44],
}
_CLASSIFIER, _ENCODER = "ResNetForImageClassification", "ResNetModel"
TWIN = twin_with_heads(
    {
        "odd": (_CLASSIFIER, _TINY | LABELS | {"hidden_sizes": [12, 20], "hidden_act": "silu"}),
        "basic": (_CLASSIFIER, _TINY | LABELS | {"layer_type": "basic"}),
        "early": (_ENCODER, _TINY | {"downsample_in_bottleneck": True}),
        "halved": (
            _ENCODER,
            _TINY
            | {"hidden_sizes": [10, 24], "layer_type": "basic"}
            | {"downsample_in_first_stage": True},
        ),
    }
)
