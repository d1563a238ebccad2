"""Twins of `export.models.captioners.blip`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, TINY_TEXT, Twin

_TINY_IMAGE = TINY_IMAGE | {"layer_norm_eps": 1e-3}
_TINY_TEXT = TINY_TEXT | {
    "hidden_size": 30,
    "num_attention_heads": 3,
    "intermediate_size": 44,
    "max_position_embeddings": 32,
    "bos_token_id": 62,
    "eos_token_id": 2,  # unused: captions end at the separator
    "sep_token_id": 1,
    "pad_token_id": 0,
    "layer_norm_eps": 1e-3,
}
_RETRIEVAL = {"architectures": ["BlipForImageTextRetrieval"], "image_text_hidden_size": 7}
TWIN = Twin(
    reference="transformers:BlipForConditionalGeneration",
    outputs={"pair": "itm_score"},
    references=dict.fromkeys(("retrieval", "matched"), "transformers:BlipForImageTextRetrieval"),
    configs={
        "plain": {
            "text_config": _TINY_TEXT | {"hidden_size": 24},
            "vision_config": _TINY_IMAGE | {"num_hidden_layers": 1},
        },
        "odd": {"text_config": _TINY_TEXT, "vision_config": _TINY_IMAGE},
        "other-activations": {
            "text_config": _TINY_TEXT | {"hidden_act": "relu", "num_hidden_layers": 1},
            "vision_config": _TINY_IMAGE | {"hidden_act": "quick_gelu", "num_attention_heads": 3},
        },
        "retrieval": {"text_config": _TINY_TEXT, "vision_config": _TINY_IMAGE, **_RETRIEVAL},
        "matched": {
            "text_config": _TINY_TEXT | {"hidden_size": 24, "hidden_act": "relu"},
            "vision_config": _TINY_IMAGE | {"num_hidden_layers": 1},
            **_RETRIEVAL,
        },
    },
)
