"""Twins of `export.models.vision.vit`."""

from __future__ import annotations

from export.models.vision.vit import DINOV2_HEADS, REGISTERS, TEACHER, VIT_HEADS
from tests.export.twin import LABELS, ODD_IMAGE, TINY_IMAGE, twin_with_heads

_PETS = {"id2label": {0: "cat", 1: "dog", 2: "owl"}}
_CLASSIFIER, _ENCODER = VIT_HEADS
VIT = twin_with_heads(
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

DEIT = twin_with_heads(
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

_TINY_DINOV2 = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "mlp_ratio": 2,
}
_DINOV2, _DINOV2_CLASSIFIER = DINOV2_HEADS["dinov2"]
_WITH_REGISTERS, _CLASSIFIER_WITH_REGISTERS = DINOV2_HEADS[REGISTERS]
DINOV2 = twin_with_heads(
    {
        "odd": (
            _DINOV2_CLASSIFIER,
            _TINY_DINOV2
            | LABELS
            | {
                "hidden_size": 30,
                "num_attention_heads": 3,
                "qkv_bias": False,
                "layer_norm_eps": 1e-3,
                "use_swiglu_ffn": True,
            },
        ),
        "plain": (_DINOV2_CLASSIFIER, _TINY_DINOV2 | LABELS | {"hidden_act": "gelu_new"}),
        "enlarged": (_DINOV2, _TINY_DINOV2),
        "registers": (
            _CLASSIFIER_WITH_REGISTERS,
            _TINY_DINOV2 | LABELS | {"model_type": REGISTERS, "num_register_tokens": 3},
        ),
        "registers-odd": (
            _WITH_REGISTERS,
            _TINY_DINOV2
            | {"model_type": REGISTERS, "use_swiglu_ffn": True, "num_register_tokens": 1},
        ),
    },
    images={
        "odd": (28, 42),
        "enlarged": (75, 84),
        "registers": (28, 42),
        "registers-odd": (84, 70),
    },
)
