"""Twins of `export.models.encoders.distilbert`."""

from __future__ import annotations

from tests.export.twin import twin_with_heads

_TINY = {
    "vocab_size": 64,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 16,
}
_ODD = _TINY | {"dim": 30, "n_heads": 3, "n_layers": 1, "activation": "relu"}
TWIN = twin_with_heads(
    {
        "odd": ("DistilBertModel", _ODD),
        "plain": ("DistilBertModel", _TINY | {"sinusoidal_pos_embds": True}),
        "tags": ("DistilBertForTokenClassification", _ODD | {"num_labels": 5}),
        "answers": ("DistilBertForQuestionAnswering", _ODD),
        "masked": ("DistilBertForMaskedLM", _ODD),
        "untied": ("DistilBertForMaskedLM", _TINY | {"tie_word_embeddings": False}),
        "classes": ("DistilBertForSequenceClassification", _TINY | {"num_labels": 3}),
    }
)
