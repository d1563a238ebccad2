"""Twins of `export.models.vision_language.llava`."""

from __future__ import annotations

from itertools import product

from tests.export.twin import TINY_IMAGE, tiny_twin
from tests.export.twins import llama

_TINY_IMAGE = TINY_IMAGE | {
    "model_type": "clip_vision_model",
    "image_size": 16,
    "num_hidden_layers": 3,
    "layer_norm_eps": 1e-3,
}
_TINY_TEXT = llama.TINY_INNER
_TINY = {
    "text_config": _TINY_TEXT,
    "vision_config": _TINY_IMAGE,
    "image_token_index": 61,
    "image_seq_length": 4,
}
LLAVA = tiny_twin(
    "transformers:LlavaForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": _TINY_TEXT | llama.NARROW,
            "vision_config": _TINY_IMAGE | {"hidden_size": 36, "num_attention_heads": 3},
            "image_seq_length": 4,
            "multimodal_projector_bias": False,
        },
        "two layers, with the class token": {
            "vision_feature_layer": [-1, 1],
            "vision_feature_select_strategy": "full",
            "vision_config": _TINY_IMAGE | {"image_size": 8},
            "image_seq_length": 2,
            "projector_hidden_act": "gelu_pytorch_tanh",
            "text_config": _TINY_TEXT | {"tie_word_embeddings": True},
            "tie_word_embeddings": True,
        },
        "mistral": {"text_config": _TINY_TEXT | {"model_type": "mistral", "sliding_window": 3}},
        "siglip and qwen2": {
            "text_config": _TINY_TEXT | {"model_type": "qwen2"},
            "vision_config": _TINY_IMAGE | {"model_type": "siglip_vision_model"},
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
    },
)


_TINY_TILE = {"image_size": 8, "patch_size": 8}
_TINY_NEXT = {
    **LLAVA.configs["plain"],
    "vision_config": LLAVA.configs["plain"]["vision_config"] | _TINY_TILE,
    "image_grid_pinpoints": [[8, 8], [16, 8], [8, 24], [16, 16]],
}
_ODD = LLAVA.configs["odd"]
LLAVA_NEXT = tiny_twin(
    "transformers:LlavaNextForConditionalGeneration",
    _TINY_NEXT,
    {
        "odd": {
            "text_config": _ODD["text_config"],
            "vision_config": _ODD["vision_config"] | {"image_size": 11, "patch_size": 7},
            "image_grid_pinpoints": [[11, 11], [22, 11], [33, 22], [11, 33]],
            "multimodal_projector_bias": False,
        },
        "siglip and qwen2": {
            "text_config": LLAVA.configs["siglip and qwen2"]["text_config"],
            "vision_config": LLAVA.configs["siglip and qwen2"]["vision_config"] | _TINY_TILE,
            "vision_feature_layer": [-1, 1],
            "vision_feature_select_strategy": "full",
        },
    },
)
_MANY = [list(size) for size in product((11, 22, 33), repeat=2)]
LLAVA_ONEVISION = tiny_twin(
    "transformers:LlavaOnevisionForConditionalGeneration",
    {
        **_TINY_NEXT,
        "text_config": _TINY_TEXT | {"model_type": "qwen2"},
        "vision_config": {**_TINY_NEXT["vision_config"], "model_type": "siglip_vision_model"},
        "video_token_index": 60,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
    {
        "odd": {
            "text_config": _TINY_TEXT | llama.NARROW | {"model_type": "qwen2"},
            "vision_config": {
                **_ODD["vision_config"],
                "model_type": "siglip_vision_model",
                "image_size": 11,
                "patch_size": 5,
            },
            "image_grid_pinpoints": _MANY,
            "vision_aspect_ratio": "anyres_max_1",
            "multimodal_projector_bias": False,
        },
    },
)
