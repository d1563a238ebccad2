"""Twins of `export.models.encoders.deberta`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_TEXT, twin_with_heads

_V3 = TINY_TEXT | {
    "relative_attention": True,
    "position_buckets": 4,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
}
_ODD = _V3 | ODD_TEXT | {"num_hidden_layers": 1, "hidden_act": "gelu_new"}
_V2 = _V3 | {"conv_kernel_size": 3, "conv_act": "gelu", "type_vocab_size": 2}
TWIN = twin_with_heads(
    {
        "odd": ("DebertaV2ForSequenceClassification", _ODD | {"num_labels": 3}),
        "plain": ("DebertaV2Model", TINY_TEXT),
        "v3": ("DebertaV2Model", _V3),
        "v2": ("DebertaV2ForSequenceClassification", _V2 | {"pooler_hidden_act": "tanh"}),
        "grouped-convolution": ("DebertaV2Model", _V2 | {"conv_groups": 2, "conv_kernel_size": 5}),
        "own-projections": (
            "DebertaV2Model",
            _V3 | {"share_att_key": False, "position_buckets": -1, "max_relative_positions": 5},
        ),
        "c2p": ("DebertaV2Model", _V3 | {"pos_att_type": ["c2p"], "norm_rel_ebd": "none"}),
        "p2c": ("DebertaV2Model", _V3 | {"pos_att_type": ["p2c"], "share_att_key": False}),
        "masked": ("DebertaV2ForMaskedLM", _ODD),
        "narrow": ("DebertaV2ForMaskedLM", _V3 | {"embedding_size": 12}),
        "untied": ("DebertaV2ForMaskedLM", _V3 | {"tie_word_embeddings": False}),
        "new-head": ("DebertaV2ForMaskedLM", _V3 | {"legacy": False}),
        "tags": ("DebertaV2ForTokenClassification", _V3 | {"num_labels": 5}),
        "answers": ("DebertaV2ForQuestionAnswering", _V3),
    }
)
