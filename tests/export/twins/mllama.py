"""Twins of `export.models.vision_language.mllama`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llama

_IMAGE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_global_layers": 1,
    "attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 8,
    "patch_size": 4,
    "intermediate_layers_indices": [0],
    "vision_output_dim": 48,
}
_TEXT = llama.TINY | {
    "vocab_size": 61,
    "num_hidden_layers": 4,
    "cross_attention_layers": [1, 3],
    "pad_token_id": 0,
}
TWIN = tiny_twin(
    "transformers:MllamaForConditionalGeneration",
    {"text_config": _TEXT, "vision_config": _IMAGE, "image_token_index": 61},
    {
        "odd": {
            "text_config": _TEXT
            | {
                "vocab_size": 62,
                "hidden_size": 30,
                "num_attention_heads": 3,
                "num_key_value_heads": 1,
                "num_hidden_layers": 3,
                "cross_attention_layers": [1],
                "rms_norm_eps": 1e-3,
                "rope_parameters": llama.LLAMA.configs["odd"]["rope_parameters"],
            },
            "vision_config": _IMAGE
            | {
                "hidden_size": 36,
                "attention_heads": 3,
                "num_hidden_layers": 3,
                "num_global_layers": 2,
                "image_size": 11,
                "patch_size": 5,
                "intermediate_layers_indices": [0, 2],
                "vision_output_dim": 108,
                "norm_eps": 1e-3,
            },
        },
        "two tiles": {
            "text_config": _TEXT
            | {"vocab_size": 64, "cross_attention_layers": [2], "num_hidden_layers": 3},
            "vision_config": _IMAGE
            | {
                "max_num_tiles": 2,
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
                "intermediate_layers_indices": [1],
            },
        },
    },
)
