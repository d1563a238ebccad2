"""Twins of `export.models.vision_language.qwen2_5_vl`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import qwen2_vl

_TINY_IMAGE = {
    "hidden_size": 24,
    "out_hidden_size": 32,
    "intermediate_size": 20,
    "num_heads": 2,
    "depth": 2,
    "patch_size": 4,
    "window_size": 8,
    "fullatt_block_indexes": [1],
}
_ODD = qwen2_vl.TWIN.configs["odd"]
TWIN = tiny_twin(
    "transformers:Qwen2_5_VLForConditionalGeneration",
    {**qwen2_vl.TWIN.configs["plain"], "vision_config": _TINY_IMAGE},
    {
        "odd": {
            "text_config": _ODD["text_config"],
            "vision_config": {
                **_TINY_IMAGE,
                "hidden_size": 36,
                "out_hidden_size": 60,
                "intermediate_size": 26,
                "num_heads": 3,
                "depth": 3,
                "patch_size": 5,
                "window_size": 39,
                "fullatt_block_indexes": [0],
                "hidden_act": "gelu",
            },
        },
        "every patch by itself": {
            "vision_config": {**_TINY_IMAGE, "spatial_merge_size": 1, "window_size": 4},
        },
    },
)
