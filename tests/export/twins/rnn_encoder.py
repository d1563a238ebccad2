"""Twins of `export.models.recurrent.rnn_encoder`."""

from __future__ import annotations

from tests.export.twin import twin_with_heads

_TINY = {
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "cell": "lstm",
    "max_positions": 16,
}
_ODD = _TINY | {"embedding_size": 9, "hidden_size": 7, "bidirectional": True, "num_layers": 2}
_CLASSES, _TAGS = "RnnForSequenceClassification", "RnnForTokenClassification"
TWIN = twin_with_heads(
    {
        "odd": (_CLASSES, _ODD | {"num_labels": 3}),
        "plain": ("RnnModel", _TINY),
        "elman": (_CLASSES, _TINY | {"cell": "rnn", "num_labels": 2, "pooling": "mean"}),
        "gru": (_TAGS, _ODD | {"cell": "gru-reset-after", "num_labels": 5}),
        "paper-gru": (_TAGS, _ODD | {"cell": "gru", "num_labels": 5}),
        "peephole": (_TAGS, _ODD | {"cell": "lstm-peephole", "num_labels": 4}),
        "mut1": (_CLASSES, _ODD | {"cell": "mut1", "num_labels": 3}),
        "mut2": (_CLASSES, _ODD | {"cell": "mut2", "num_labels": 3, "pooling": "max"}),
        "mut3": (_TAGS, _TINY | {"cell": "mut3", "num_labels": 3}),
        "nas": (_TAGS, _ODD | {"cell": "nas", "num_labels": 3}),
    },
    module="tests.export.models.recurrent_paper",
)
