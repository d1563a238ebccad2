"""Twins of `export.models.encoders.xlnet`."""

from __future__ import annotations

from tests.export.twin import twin_with_heads

_TINY = {
    "vocab_size": 64,
    "d_model": 32,
    "n_layer": 2,
    "n_head": 4,
    "d_inner": 48,
}
_ODD = _TINY | {
    "d_model": 30,
    "n_head": 3,
    "n_layer": 1,
    "ff_activation": "relu",
    "layer_norm_eps": 1e-3,
    "clamp_len": 3,
}
TWIN = twin_with_heads(
    {
        "odd": ("XLNetModel", _ODD),
        "plain": ("XLNetModel", _TINY),
        "classes": ("XLNetForSequenceClassification", _ODD | {"num_labels": 3}),
        "mean": ("XLNetForSequenceClassification", _TINY | {"summary_type": "mean"}),
        "first": (
            "XLNetForSequenceClassification",
            _TINY | {"summary_type": "first", "summary_activation": "relu", "num_labels": 1},
        ),
        "tags": ("XLNetForTokenClassification", _TINY | {"num_labels": 5}),
        "answers": ("XLNetForQuestionAnsweringSimple", _TINY),
    }
)
