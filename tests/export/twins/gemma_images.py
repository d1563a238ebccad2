"""Twins of `export.models.vision_language.gemma_images`."""

from __future__ import annotations

from typing import Any

from tests.export.twin import TINY_IMAGE, Twin, tiny_twin
from tests.export.twins import gemma, llama

_TINY_IMAGE = TINY_IMAGE | {
    "model_type": "siglip_vision_model",
    "image_size": 16,
    "layer_norm_eps": 1e-3,
    "vision_use_head": False,
}
_TINY_TEXT = gemma.TINY | {"model_type": "gemma", "max_position_embeddings": 64}
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "image_token_index": 61,
    "projection_dim": 32,
    "hidden_size": 32,
}
PALIGEMMA = tiny_twin(
    "transformers:PaliGemmaForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": {
                **gemma.GEMMA.configs["odd"],
                "model_type": "gemma",
                "max_position_embeddings": 64,
            },
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "num_attention_heads": 3},
            "projection_dim": 30,
            "hidden_size": 30,
        },
        "gemma2": {
            "text_config": {
                **gemma.GEMMA2.configs["plain"],
                "model_type": "gemma2",
                "max_position_embeddings": 64,
            },
        },
    },
)


_POOLED_IMAGE = TINY_IMAGE | {
    "model_type": "siglip_vision_model",
    "image_size": 16,
    "patch_size": 4,
    "layer_norm_eps": 1e-3,
}
_GEMMA3_TEXT = {
    **gemma.GEMMA3.configs["plain"],
    "model_type": "gemma3_text",
    "max_position_embeddings": 64,
}
_TINY_GEMMA3 = {
    "text_config": _GEMMA3_TEXT,
    "vision_config": _POOLED_IMAGE | {"vision_use_head": False},
    "mm_tokens_per_image": 4,
    "image_token_index": 61,
    "boi_token_index": 59,
    "eoi_token_index": 60,
}
GEMMA3 = tiny_twin(
    "transformers:Gemma3ForConditionalGeneration",
    _TINY_GEMMA3,
    {
        "odd": {
            "text_config": {**_GEMMA3_TEXT, **gemma.GEMMA3.configs["odd"], "sliding_window": 2},
            "vision_config": _POOLED_IMAGE
            | {"hidden_size": 36, "num_attention_heads": 3, "image_size": 15, "patch_size": 3},
        },
        "wide window, untied": {
            "text_config": _GEMMA3_TEXT
            | {"sliding_window": 6, "layer_types": ["full_attention", "sliding_attention"]},
            "tie_word_embeddings": False,
        },
    },
)


def _merged_stacks(
    both: dict[str, Any],
    decoder: dict[str, Any] | None = None,
    image: dict[str, Any] = _TINY_GEMMA3["vision_config"],
    **top: Any,
) -> dict[str, Any]:
    """The configuration of T5Gemma 2; token 5 ends an image."""
    text = gemma.TINY_NEWER | both
    encoder = {"text_config": text, "vision_config": image, "mm_tokens_per_image": 4}
    sections = {
        "encoder": encoder | {"boi_token_index": 59, "eoi_token_index": 5},
        "decoder": text | (decoder or {}),
    }
    ends = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
    return sections | ends | {"image_token_index": 61} | top


T5GEMMA2 = Twin(
    reference="transformers:T5Gemma2ForConditionalGeneration",
    configs={
        "plain": _merged_stacks({"layer_types": ["sliding_attention", "full_attention"]}),
        "odd": _merged_stacks(
            llama.ODD
            | {
                "num_hidden_layers": 3,
                "query_pre_attn_scalar": 240,  # sharper, int8 changes these small ones too much
                "sliding_window": 4,
                "rope_parameters": gemma._TWO_BASES,
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            },
            {
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "head_dim": 12,
                "intermediate_size": 52,
                "num_hidden_layers": 2,
                "final_logit_softcapping": 9.0,
                "sliding_window": 3,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            GEMMA3.configs["odd"]["vision_config"],
        ),
        "untied": _merged_stacks(
            {"attention_bias": True, "hidden_activation": "relu", "sliding_window_pattern": 2},
            {"sliding_window": 2, "num_hidden_layers": 3},
            tie_word_embeddings=False,
        ),
    },
)
