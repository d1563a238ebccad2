"""Twins of `export.models.encoders.albert`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, twin_with_heads

_TINY = TINY_TEXT | {"embedding_size": 16}
_ODD = _TINY | ODD_TEXT | {"embedding_size": 11}
TWIN = twin_with_heads(
    {
        "odd": ("AlbertModel", _ODD),
        "groups": (
            "AlbertModel",
            _TINY | {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
        ),
        "rounded groups": (  # 9 · 14 / 18 is whole, but 9 / (18 / 14) is a little less in floats
            "AlbertModel",
            _TINY | {"num_hidden_layers": 18, "num_hidden_groups": 14, "hidden_size": 8},
        ),
        "masked": ("AlbertForMaskedLM", _ODD | {"num_hidden_layers": 1}),
        "untied": ("AlbertForMaskedLM", _TINY | {"tie_word_embeddings": False}),
        "pretraining": ("AlbertForPreTraining", _ODD | {"hidden_act": "gelu"}),
        "classes": ("AlbertForSequenceClassification", _ODD | {"num_labels": 3}),
        "tags": ("AlbertForTokenClassification", _TINY | {"num_labels": 5}),
        "answers": ("AlbertForQuestionAnswering", _TINY),
    },
    outputs={"pair": "sop_logits"},
)
