"""Twins of `export.models.vision.dinov2`."""

from __future__ import annotations

from export.models.vision.dinov2 import HEADS, REGISTERS
from tests.export.twin import LABELS, twin_with_heads

_TINY = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 56,
    "patch_size": 14,
    "mlp_ratio": 2,
}
_ENCODER, _CLASSIFIER = HEADS["dinov2"]
_ENCODER_WITH_REGISTERS, _CLASSIFIER_WITH_REGISTERS = HEADS[REGISTERS]
TWIN = twin_with_heads(
    {
        "odd": (
            _CLASSIFIER,
            _TINY
            | LABELS
            | {
                "hidden_size": 30,
                "num_attention_heads": 3,
                "qkv_bias": False,
                "layer_norm_eps": 1e-3,
                "use_swiglu_ffn": True,
            },
        ),
        "plain": (_CLASSIFIER, _TINY | LABELS | {"hidden_act": "gelu_new"}),
        "enlarged": (_ENCODER, _TINY),
        "registers": (
            _CLASSIFIER_WITH_REGISTERS,
            _TINY | LABELS | {"model_type": REGISTERS, "num_register_tokens": 3},
        ),
        "registers-odd": (
            _ENCODER_WITH_REGISTERS,
            _TINY | {"model_type": REGISTERS, "use_swiglu_ffn": True, "num_register_tokens": 1},
        ),
    },
    images={
        "odd": (28, 42),
        "enlarged": (75, 84),
        "registers": (28, 42),
        "registers-odd": (84, 70),
    },
)
