"""Twins of `export.models.vision_language.vilt`."""

from __future__ import annotations

from tests.export.twin import LABELS, ODD_TEXT, TINY_TEXT, twin_with_heads

_PLAIN = TINY_TEXT | {"image_size": 32, "patch_size": 8}
_ODD = _PLAIN | ODD_TEXT | {"hidden_act": "relu", "qkv_bias": False, "image_size": 30}
TWIN = twin_with_heads(
    {
        "plain": ("ViltForImageAndTextRetrieval", _PLAIN),
        "odd": ("ViltForQuestionAnswering", _ODD | LABELS | {"modality_type_vocab_size": 3}),
    },
    images={"odd": (44, 69)},
)
