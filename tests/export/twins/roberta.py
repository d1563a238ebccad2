"""Twins of `export.models.encoders.roberta`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, twin_with_heads

_TINY = TINY_TEXT | {
    "num_hidden_layers": 1,
    "max_position_embeddings": 18,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
_ODD = _TINY | ODD_TEXT | {"pad_token_id": 31, "max_position_embeddings": 48}
"""The padding token is one that texts of the tests contain."""
TWIN = twin_with_heads(
    {
        "odd": ("RobertaModel", _ODD),
        "masked": ("RobertaForMaskedLM", _ODD | {"hidden_act": "relu"}),
        "untied": ("RobertaForMaskedLM", _TINY | {"tie_word_embeddings": False}),
        "classes": ("RobertaForSequenceClassification", _ODD | {"num_labels": 3}),
        "segments": ("RobertaForSequenceClassification", _TINY | {"type_vocab_size": 2}),
        "relevance": (
            "XLMRobertaForSequenceClassification",
            _TINY | {"num_labels": 1, "model_type": "xlm-roberta"},
        ),
        "many-languages": ("XLMRobertaModel", _TINY | {"model_type": "xlm-roberta"}),
        "french": ("CamembertForMaskedLM", _TINY | {"model_type": "camembert"}),
        "tags": (
            "CamembertForTokenClassification",
            _TINY | {"num_labels": 5, "model_type": "camembert", "pad_token_id": 0},
        ),
        "answers": ("RobertaForQuestionAnswering", _ODD),
    }
)
