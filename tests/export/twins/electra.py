"""Twins of `export.models.encoders.electra`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, twin_with_heads

_TINY = TINY_TEXT | {"embedding_size": 32}
_ODD = _TINY | ODD_TEXT | {"embedding_size": 11, "hidden_act": "relu"}
TWIN = twin_with_heads(
    {
        "odd": ("ElectraModel", _ODD),
        "masked": ("ElectraForMaskedLM", _ODD),
        "untied": ("ElectraForMaskedLM", _TINY | {"tie_word_embeddings": False}),
        "classes": ("ElectraForSequenceClassification", _ODD | {"num_labels": 3}),
        "tags": ("ElectraForTokenClassification", _TINY | {"num_labels": 5}),
        "answers": ("ElectraForQuestionAnswering", _ODD),
    }
)
