"""Twins of `export.models.vision_language.internvl`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, tiny_twin
from tests.export.twins import llama

_TINY_IMAGE = TINY_IMAGE | {"image_size": 16, "patch_size": 4, "layer_norm_eps": 1e-3}
_TINY_TEXT = llama.TINY_INNER | {"model_type": "qwen2"}
TWIN = tiny_twin(
    "transformers:InternVLForConditionalGeneration",
    {
        "text_config": _TINY_TEXT,
        "vision_config": _TINY_IMAGE,
        "image_token_id": 61,
        "image_seq_length": 4,
        "tie_word_embeddings": False,
    },
    {
        "odd": {
            "text_config": _TINY_TEXT | llama.NARROW,
            "vision_config": _TINY_IMAGE
            | {
                "hidden_size": 36,
                "num_attention_heads": 3,
                "image_size": 23,
                "patch_size": 5,
                "use_mean_pooling": False,
                "attention_bias": True,
            },
            "projector_hidden_act": "gelu_pytorch_tanh",
        },
        "the largest tower, tied": {
            "text_config": _TINY_TEXT | {"model_type": "qwen3", "head_dim": 8},
            "vision_config": _TINY_IMAGE
            | {"norm_type": "rms_norm", "use_qk_norm": True, "use_mask_token": True},
            "downsample_ratio": 0.25,
            "image_seq_length": 1,
            "tie_word_embeddings": True,
        },
        "whole patches, llama": {
            "text_config": llama.TINY_INNER,
            "downsample_ratio": 1.0,
            "image_seq_length": 16,
        },
    },
)
