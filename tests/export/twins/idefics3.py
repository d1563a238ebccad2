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
IDEFICS3 = tiny_twin(
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

_TINY_RESAMPLER = {
    "hidden_size": 32,
    "resampler_n_latents": 3,
    "resampler_depth": 2,
    "resampler_n_heads": 4,
    "resampler_head_dim": 8,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-3,
}
IDEFICS2 = tiny_twin(
    "transformers:Idefics2ForConditionalGeneration",
    {
        "text_config": _TINY_TEXT | {"model_type": "mistral", "sliding_window": None},
        "vision_config": _TINY_IMAGE,
        "perceiver_config": _TINY_RESAMPLER,
        "image_token_id": 61,
    },
    {
        "odd": {
            "text_config": _TINY_TEXT | llama.NARROW | {"model_type": "mistral"},
            "vision_config": _TINY_IMAGE
            | {"hidden_size": 36, "num_attention_heads": 3, "image_size": 33, "patch_size": 5},
            "perceiver_config": {
                **_TINY_RESAMPLER,
                "resampler_n_latents": 4,
                "resampler_n_heads": 6,
                "resampler_head_dim": 7,
                "num_key_value_heads": 3,
                "hidden_act": "gelu",
            },
        },
        "tied, every head its own keys": {
            "perceiver_config": _TINY_RESAMPLER
            | {"num_key_value_heads": 4, "resampler_n_latents": 1, "resampler_depth": 1},
            "tie_word_embeddings": True,
        },
        "llama": {"text_config": _TINY_TEXT},
    },
)
