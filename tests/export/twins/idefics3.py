"""Twins of `export.models.vision_language.idefics3`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, tiny_twin
from tests.export.twins import llama

_TINY_IMAGE = TINY_IMAGE | {"image_size": 16, "patch_size": 4, "layer_norm_eps": 1e-3}
_TINY_TEXT = llama.TINY_INNER
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "image_token_id": 61,
    "scale_factor": 2,
}
TWIN = tiny_twin(
    "transformers:Idefics3ForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": _TINY_TEXT | llama.NARROW,
            "vision_config": _TINY_IMAGE
            | {"hidden_size": 36, "num_attention_heads": 3, "image_size": 33, "patch_size": 5},
            "scale_factor": 3,
        },
        "smolvlm, tied": {
            "model_type": "smolvlm",
            "vision_config": _TINY_IMAGE | {"hidden_act": "gelu", "image_size": 6, "patch_size": 3},
            "scale_factor": 1,
            "tie_word_embeddings": True,
        },
        "mistral": {"text_config": _TINY_TEXT | {"model_type": "mistral", "sliding_window": 3}},
    },
    references={"smolvlm, tied": "transformers:SmolVLMForConditionalGeneration"},
)
