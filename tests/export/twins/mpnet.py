"""Twins of `export.models.encoders.mpnet`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, twin_with_heads

_TINY = TINY_TEXT | {"max_position_embeddings": 18}
_ODD = _TINY | ODD_TEXT | {"num_hidden_layers": 1, "hidden_act": "relu"}
TWIN = twin_with_heads(
    {
        "odd": ("MPNetModel", _ODD),
        "plain": ("MPNetModel", _TINY),
        "masked": ("MPNetForMaskedLM", _ODD),
        "untied": ("MPNetForMaskedLM", _TINY | {"tie_word_embeddings": False}),
        "classes": ("MPNetForSequenceClassification", _TINY | {"num_labels": 3}),
        "tags": ("MPNetForTokenClassification", _TINY | {"num_labels": 5}),
        "answers": ("MPNetForQuestionAnswering", _TINY),
    }
)
