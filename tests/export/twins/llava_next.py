"""Twins of `export.models.vision_language.llava_next`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import llava

_TINY_IMAGE = {"image_size": 8, "patch_size": 8}
_TINY = {
    **llava.TWIN.configs["plain"],
    "vision_config": llava.TWIN.configs["plain"]["vision_config"] | _TINY_IMAGE,
    "image_grid_pinpoints": [[8, 8], [16, 8], [8, 24], [16, 16]],
}
_ODD = llava.TWIN.configs["odd"]
TWIN = tiny_twin(
    "transformers:LlavaNextForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "text_config": _ODD["text_config"],
            "vision_config": _ODD["vision_config"] | {"image_size": 11, "patch_size": 7},
            "image_grid_pinpoints": [[11, 11], [22, 11], [33, 22], [11, 33]],
            "multimodal_projector_bias": False,
        },
        "siglip and qwen2": {
            "text_config": llava.TWIN.configs["siglip and qwen2"]["text_config"],
            "vision_config": llava.TWIN.configs["siglip and qwen2"]["vision_config"] | _TINY_IMAGE,
            "vision_feature_layer": [-1, 1],
            "vision_feature_select_strategy": "full",
        },
    },
)
