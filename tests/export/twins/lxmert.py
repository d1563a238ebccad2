"""Twins of `export.models.vision_language.lxmert`."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

from tests.export.twin import LABELS, ODD_TEXT, TINY_TEXT, tiny_twin, twin_with_heads

_PLAIN = TINY_TEXT | {"l_layers": 2, "r_layers": 1, "x_layers": 2, "num_qa_labels": 9}
_PLAIN |= {"visual_feat_dim": 10, "architectures": ["LxmertForQuestionAnswering"]}
_ODD = ODD_TEXT | LABELS | {"hidden_act": "relu", "visual_feat_dim": 7, "type_vocab_size": 3}
TWIN = tiny_twin(
    "transformers:LxmertForQuestionAnswering",
    _PLAIN,
    {"odd": _ODD | {"l_layers": 3, "r_layers": 1, "x_layers": 2}, "one": {"x_layers": 1}},
    outputs={"pair": "question_answering_score"},
)


class VisualBertForQuestionAnswering(transformers.VisualBertForQuestionAnswering):
    """With the mask that it needs; a text of one token, which it cannot read, is read at that."""

    def forward(self, input_ids: Tensor, visual_embeds: Tensor, **fields: Any) -> Any:
        mask = fields.pop("attention_mask", torch.ones_like(input_ids))
        if input_ids.shape[1] == 1:
            read = self.visual_bert(input_ids, visual_embeds=visual_embeds)
            return {"logits": self.cls(read.last_hidden_state[:, 0])}
        return super().forward(input_ids, mask, visual_embeds=visual_embeds, **fields)


VisualBertForVisualReasoning = transformers.VisualBertForVisualReasoning

_PLAIN_BERT = TINY_TEXT | {"visual_embedding_dim": 10, "special_visual_initialize": False}
_ODD_BERT = _PLAIN_BERT | ODD_TEXT | LABELS | {"hidden_act": "relu", "visual_embedding_dim": 7}
VISUAL_BERT = twin_with_heads(
    {
        "plain": (
            "VisualBertForVisualReasoning",
            _PLAIN_BERT,
        ),
        "odd": ("VisualBertForQuestionAnswering", _ODD_BERT | {"type_vocab_size": 3}),
    },
    module="tests.export.twins.lxmert",
)
