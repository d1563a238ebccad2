"""Twins of `export.models.dual_encoders.bert_clip`."""

from __future__ import annotations

from tests.export.twin import ODD_TEXT, TINY_IMAGE, TINY_TEXT, Twin

_ODD_IMAGE = TINY_IMAGE | {"hidden_size": 36, "patch_size": 12, "layer_norm_eps": 1e-3}
_OUTPUTS = {"image": "image_embeds", "text": "text_embeds"}
CHINESE_CLIP = Twin(
    reference="transformers:ChineseCLIPModel",
    configs={
        "odd": {
            "text_config": TINY_TEXT | ODD_TEXT | {"type_vocab_size": 3, "hidden_act": "relu"},
            "vision_config": _ODD_IMAGE,
            "projection_dim": 7,
        },
        "plain": {"text_config": TINY_TEXT, "vision_config": TINY_IMAGE},
    },
    outputs=_OUTPUTS,
)

_TINY_ALT = TINY_TEXT | {"max_position_embeddings": 18, "type_vocab_size": 1}
ALTCLIP = Twin(
    reference="transformers:AltCLIPModel",
    configs={
        "odd": {
            "text_config": TINY_TEXT
            | ODD_TEXT
            # the padding token is one that texts of the tests contain
            | {"project_dim": 21, "pad_token_id": 31, "max_position_embeddings": 48},
            "vision_config": _ODD_IMAGE | {"hidden_act": "gelu"},
            "projection_dim": 7,
        },
        "plain": {
            "text_config": _TINY_ALT | {"project_dim": 20},
            "vision_config": TINY_IMAGE,
            "projection_dim": 24,
        },
    },
    outputs=_OUTPUTS,
)
