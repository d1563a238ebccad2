"""Twins of `export.models.encoders.modernbert`."""

from __future__ import annotations

from tests.export.twin import twin_with_heads

_TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 18,
    "local_attention": 6,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
_TWO_BASES = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
_ODD = _TINY | {
    "hidden_size": 30,
    "num_attention_heads": 3,
    "intermediate_size": 25,
    "local_attention": 5,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": _TWO_BASES,
    "attention_bias": True,
    "mlp_bias": True,
    "norm_bias": True,
    "norm_eps": 1e-3,
    "hidden_activation": "relu",
}
_HEAD = {"classifier_bias": True, "classifier_activation": "tanh"}
TWIN = twin_with_heads(
    {
        "odd": ("ModernBertModel", _ODD),
        "plain": ("ModernBertModel", _TINY | {"num_hidden_layers": 4}),
        "masked": ("ModernBertForMaskedLM", _ODD | _HEAD),
        "untied": (
            "ModernBertForMaskedLM",
            _TINY | {"tie_word_embeddings": False, "decoder_bias": False},
        ),
        "classes": ("ModernBertForSequenceClassification", _TINY | {"num_labels": 3}),
        "relevance": (
            "ModernBertForSequenceClassification",
            _ODD | _HEAD | {"num_labels": 1, "classifier_pooling": "mean"},
        ),
        "tags": ("ModernBertForTokenClassification", _TINY | {"num_labels": 5}),
        "answers": ("ModernBertForQuestionAnswering", _ODD | _HEAD),
    }
)
