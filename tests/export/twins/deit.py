"""Twins of `export.models.vision.deit`."""

from __future__ import annotations

from export.models.vision.deit import TEACHER
from tests.export.twin import LABELS, ODD_IMAGE, TINY_IMAGE, twin_with_heads

TWIN = twin_with_heads(
    {
        "odd": (
            TEACHER,
            ODD_IMAGE,
        ),
        "resized": (TEACHER, TINY_IMAGE | LABELS | {"num_hidden_layers": 1}),
        "one-head": ("DeiTForImageClassification", TINY_IMAGE | LABELS),
        "pooled": ("DeiTModel", TINY_IMAGE | {"pooler_output_size": 20, "hidden_act": "gelu_new"}),
    },
    images={"resized": (56, 40)},
)
