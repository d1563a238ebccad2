"""Twins of `export.models.vision.vit_classifier`."""

from __future__ import annotations

from export.models.vision.vit_classifier import HEADS
from tests.export.twin import ODD_IMAGE, TINY_IMAGE, twin_with_heads

_PETS = {"id2label": {0: "cat", 1: "dog", 2: "owl"}}
_CLASSIFIER, _ENCODER = HEADS
TWIN = twin_with_heads(
    {
        "plain": (_CLASSIFIER, TINY_IMAGE | _PETS),
        "odd": (
            _CLASSIFIER,
            ODD_IMAGE,
        ),
        "patch-14": (
            _CLASSIFIER,
            TINY_IMAGE
            | {"image_size": 45, "patch_size": 14, "hidden_act": "quick_gelu"}
            | {"num_hidden_layers": 1}
            | _PETS,
        ),
        "resized": (
            _CLASSIFIER,
            TINY_IMAGE | {"problem_type": "multi_label_classification"} | _PETS,
        ),
        "pooled": (_ENCODER, TINY_IMAGE | {"pooler_output_size": 20, "pooler_act": "gelu"}),
        "pooled-resized": (_ENCODER, TINY_IMAGE),
    },
    images={"resized": (40, 56), "pooled-resized": (24, 32)},
)
