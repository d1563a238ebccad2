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

MEGATRON = twin_with_heads(
    {
        "odd": ("MegatronBertForPreTraining", _ODD),
        "plain": ("MegatronBertModel", TINY_TEXT),
        "masked": ("MegatronBertForMaskedLM", TINY_TEXT | {"tie_word_embeddings": False}),
        "next-sentence": ("MegatronBertForNextSentencePrediction", TINY_TEXT),
        "classes": ("MegatronBertForSequenceClassification", _ODD | {"num_labels": 3}),
        "tags": ("MegatronBertForTokenClassification", TINY_TEXT | {"num_labels": 5}),
        "answers": ("MegatronBertForQuestionAnswering", TINY_TEXT),
    },
    outputs={"pair": "seq_relationship_logits"},
)

_TINY_ROBERTA = TINY_TEXT | {
    "num_hidden_layers": 1,
    "max_position_embeddings": 18,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
_ODD_ROBERTA = _TINY_ROBERTA | ODD_TEXT | {"pad_token_id": 31, "max_position_embeddings": 48}
"""The padding token is one that texts of the tests contain."""
ROBERTA = twin_with_heads(
    {
        "odd": ("RobertaModel", _ODD_ROBERTA),
        "masked": ("RobertaForMaskedLM", _ODD_ROBERTA | {"hidden_act": "relu"}),
        "untied": ("RobertaForMaskedLM", _TINY_ROBERTA | {"tie_word_embeddings": False}),
        "classes": ("RobertaForSequenceClassification", _ODD_ROBERTA | {"num_labels": 3}),
        "segments": ("RobertaForSequenceClassification", _TINY_ROBERTA | {"type_vocab_size": 2}),
        "relevance": (
            "XLMRobertaForSequenceClassification",
            _TINY_ROBERTA | {"num_labels": 1, "model_type": "xlm-roberta"},
        ),
        "many-languages": ("XLMRobertaModel", _TINY_ROBERTA | {"model_type": "xlm-roberta"}),
        "french": ("CamembertForMaskedLM", _TINY_ROBERTA | {"model_type": "camembert"}),
        "tags": (
            "CamembertForTokenClassification",
            _TINY_ROBERTA | {"num_labels": 5, "model_type": "camembert", "pad_token_id": 0},
        ),
        "answers": ("RobertaForQuestionAnswering", _ODD_ROBERTA),
    }
)

_TINY_DISTILBERT = {
    "vocab_size": 64,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 48,
    "max_position_embeddings": 16,
}
_ODD_DISTILBERT = _TINY_DISTILBERT | {"dim": 30, "n_heads": 3, "n_layers": 1, "activation": "relu"}
DISTILBERT = twin_with_heads(
    {
        "odd": ("DistilBertModel", _ODD_DISTILBERT),
        "plain": ("DistilBertModel", _TINY_DISTILBERT | {"sinusoidal_pos_embds": True}),
        "tags": ("DistilBertForTokenClassification", _ODD_DISTILBERT | {"num_labels": 5}),
        "masked": ("DistilBertForMaskedLM", _ODD_DISTILBERT),
        "untied": ("DistilBertForMaskedLM", _TINY_DISTILBERT | {"tie_word_embeddings": False}),
        "classes": ("DistilBertForSequenceClassification", _TINY_DISTILBERT | {"num_labels": 3}),
        "answers": ("DistilBertForQuestionAnswering", _ODD_DISTILBERT),
    }
)

_TINY_ELECTRA = TINY_TEXT | {"embedding_size": 32}
_ODD_ELECTRA = _TINY_ELECTRA | ODD_TEXT | {"embedding_size": 11, "hidden_act": "relu"}
ELECTRA = twin_with_heads(
    {
        "odd": ("ElectraModel", _ODD_ELECTRA),
        "masked": ("ElectraForMaskedLM", _ODD_ELECTRA),
        "untied": ("ElectraForMaskedLM", _TINY_ELECTRA | {"tie_word_embeddings": False}),
        "classes": ("ElectraForSequenceClassification", _ODD_ELECTRA | {"num_labels": 3}),
        "tags": ("ElectraForTokenClassification", _TINY_ELECTRA | {"num_labels": 5}),
        "answers": ("ElectraForQuestionAnswering", _ODD_ELECTRA),
    }
)

_TINY_ALBERT = TINY_TEXT | {"embedding_size": 16}
_ODD_ALBERT = _TINY_ALBERT | ODD_TEXT | {"embedding_size": 11}
ALBERT = twin_with_heads(
    {
        "odd": ("AlbertModel", _ODD_ALBERT),
        "groups": (
            "AlbertModel",
            _TINY_ALBERT | {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
        ),
        "rounded groups": (  # 9 · 14 / 18 is whole, but 9 / (18 / 14) is a little less in floats
            "AlbertModel",
            _TINY_ALBERT | {"num_hidden_layers": 18, "num_hidden_groups": 14, "hidden_size": 8},
        ),
        "masked": ("AlbertForMaskedLM", _ODD_ALBERT | {"num_hidden_layers": 1}),
        "untied": ("AlbertForMaskedLM", _TINY_ALBERT | {"tie_word_embeddings": False}),
        "pretraining": ("AlbertForPreTraining", _ODD_ALBERT | {"hidden_act": "gelu"}),
        "classes": ("AlbertForSequenceClassification", _ODD_ALBERT | {"num_labels": 3}),
        "tags": ("AlbertForTokenClassification", _TINY_ALBERT | {"num_labels": 5}),
        "answers": ("AlbertForQuestionAnswering", _TINY_ALBERT),
    },
    outputs={"pair": "sop_logits"},
)

_TINY_MPNET = TINY_TEXT | {"max_position_embeddings": 18}
_ODD_MPNET = _TINY_MPNET | ODD_TEXT | {"num_hidden_layers": 1, "hidden_act": "relu"}
MPNET = twin_with_heads(
    {
        "odd": ("MPNetModel", _ODD_MPNET),
        "plain": ("MPNetModel", _TINY_MPNET),
        "masked": ("MPNetForMaskedLM", _ODD_MPNET),
        "untied": ("MPNetForMaskedLM", _TINY_MPNET | {"tie_word_embeddings": False}),
        "classes": ("MPNetForSequenceClassification", _TINY_MPNET | {"num_labels": 3}),
        "tags": ("MPNetForTokenClassification", _TINY_MPNET | {"num_labels": 5}),
        "answers": ("MPNetForQuestionAnswering", _TINY_MPNET),
    }
)
