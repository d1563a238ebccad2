"""Twins of `export.models.vision_language.lxmert`."""

from __future__ import annotations

from tests.export.twin import LABELS, ODD_TEXT, TINY_TEXT, tiny_twin

_PLAIN = TINY_TEXT | {"l_layers": 2, "r_layers": 1, "x_layers": 2, "num_qa_labels": 9}
_PLAIN |= {"visual_feat_dim": 10, "architectures": ["LxmertForQuestionAnswering"]}
_ODD = ODD_TEXT | LABELS | {"hidden_act": "relu", "visual_feat_dim": 7, "type_vocab_size": 3}
TWIN = tiny_twin(
    "transformers:LxmertForQuestionAnswering",
    _PLAIN,
    {"odd": _ODD | {"l_layers": 3, "r_layers": 1, "x_layers": 2}, "one": {"x_layers": 1}},
    outputs={"pair": "question_answering_score"},
)
