"""Twins of `export.models.vision_language.visual_bert`."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

from tests.export.twin import LABELS, ODD_TEXT, TINY_TEXT, twin_with_heads


class VisualBertForQuestionAnswering(transformers.VisualBertForQuestionAnswering):
    """With the mask that it needs; a text of one token, which it cannot read, is read at that."""

    def forward(self, input_ids: Tensor, visual_embeds: Tensor, **fields: Any) -> Any:
        mask = fields.pop("attention_mask", torch.ones_like(input_ids))
        if input_ids.shape[1] == 1:
            read = self.visual_bert(input_ids, visual_embeds=visual_embeds)
            return {"logits": self.cls(read.last_hidden_state[:, 0])}
        return super().forward(input_ids, mask, visual_embeds=visual_embeds, **fields)


VisualBertForVisualReasoning = transformers.VisualBertForVisualReasoning

_PLAIN = TINY_TEXT | {"visual_embedding_dim": 10}
_ODD = _PLAIN | ODD_TEXT | LABELS | {"hidden_act": "relu", "visual_embedding_dim": 7}
TWIN = twin_with_heads(
    {
        "plain": ("VisualBertForVisualReasoning", _PLAIN | {"special_visual_initialize": False}),
        "odd": ("VisualBertForQuestionAnswering", _ODD | {"type_vocab_size": 3}),
    },
    module="tests.export.twins.visual_bert",
)
