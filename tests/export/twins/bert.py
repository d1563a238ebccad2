"""Twins of `export.models.encoders.bert`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, twin_with_heads

_ODD = TINY_TEXT | ODD_TEXT | {"type_vocab_size": 3, "hidden_act": "gelu_new"}
TWIN = twin_with_heads(
    {
        "plain": ("BertModel", TINY_TEXT),
        "odd": ("BertForPreTraining", _ODD),
        "masked": ("BertForMaskedLM", TINY_TEXT | {"vocab_size": 131, "num_hidden_layers": 1}),
        "next-sentence": ("BertForNextSentencePrediction", TINY_TEXT),
        "classes": ("BertForSequenceClassification", _ODD | {"num_labels": 3}),
        "relevance": ("BertForSequenceClassification", TINY_TEXT | {"num_labels": 1}),
        "one-segment": (
            "BertForSequenceClassification",
            TINY_TEXT | {"type_vocab_size": 1, "hidden_act": "relu"},
        ),
        "tags": ("BertForTokenClassification", TINY_TEXT | {"num_labels": 5}),
        "answers": ("BertForQuestionAnswering", TINY_TEXT),
        "untied": ("BertForMaskedLM", TINY_TEXT | {"tie_word_embeddings": False}),
    },
    outputs={"pair": "seq_relationship_logits"},
)
