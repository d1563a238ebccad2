"""Twins of `export.models.captioners.florence2`."""

from __future__ import annotations

from export.models.captioners.florence2 import _IMAGE_TOKEN
from tests.export.twin import Twin
from tests.export.twins import bart

_TINY_IMAGE = {
    "depths": [1, 1],
    "embed_dim": [12, 20],
    "num_heads": [3, 2],
    "num_groups": [2, 5],
    "patch_size": [7, 3],
    "patch_stride": [4, 2],
    "patch_padding": [3, 1],
    "patch_prenorm": [False, True],
    "window_size": 3,
    "mlp_ratio": 1.5,
    "projection_dim": 32,
    "max_position_embeddings": 5,
    "max_temporal_embeddings": 3,
}
_TINY_TEXT = {**bart.TINY, "model_type": "bart", "max_position_embeddings": 64}
_ODD_TEXT = {**bart.ODD, "model_type": "bart", "max_position_embeddings": 64}
TWIN = Twin(
    reference="transformers:Florence2ForConditionalGeneration",
    configs={
        "plain": {"vision_config": _TINY_IMAGE, "text_config": _TINY_TEXT, _IMAGE_TOKEN: 61},
        "odd": {
            "vision_config": _TINY_IMAGE
            | {"depths": [2, 1], "window_size": 4, "projection_dim": 30, "qkv_bias": False},
            "text_config": _ODD_TEXT | {"forced_bos_token_id": 1},
            _IMAGE_TOKEN: 61,
        },
        "three stages": {
            "vision_config": _TINY_IMAGE
            | {
                "depths": [1, 2, 1],
                "embed_dim": [6, 14, 10],
                "num_heads": [1, 2, 5],
                "num_groups": [3, 1, 2],
                "patch_size": [5, 3, 2],
                "patch_stride": [3, 2, 1],
                "patch_padding": [1, 0, 0],
                "patch_prenorm": [True, False, False],
                "activation_function": "relu",
            },
            "text_config": _TINY_TEXT | {"activation_function": "relu"},
            _IMAGE_TOKEN: 61,
        },
    },
    images={"plain": (16, 16), "odd": (20, 28), "three stages": (22, 16)},
)
