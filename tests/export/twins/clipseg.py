"""Twins of `export.models.dual_encoders.clipseg`."""

from __future__ import annotations

from tests.export.twin import TINY_IMAGE, TINY_TEXT, Twin

_TINY_TEXT = TINY_TEXT | {"bos_token_id": 62, "eos_token_id": 63, "pad_token_id": 1}
TWIN = Twin(
    reference="transformers:CLIPSegForImageSegmentation",
    configs={
        "plain": {
            "text_config": _TINY_TEXT,
            "vision_config": TINY_IMAGE,
            "projection_dim": 20,
            "extract_layers": [0, 1],
            "reduce_dim": 16,
            "decoder_intermediate_size": 24,
        },
        "odd": {
            "text_config": _TINY_TEXT | {"hidden_size": 30, "num_attention_heads": 3},
            "vision_config": TINY_IMAGE
            | {
                "hidden_size": 36,
                "num_hidden_layers": 4,
                "patch_size": 9,
                "image_size": 30,
                "layer_norm_eps": 1e-3,
            },
            "projection_dim": 7,
            "extract_layers": [0, 2],
            "conditional_layer": 1,
            "reduce_dim": 15,
            "decoder_num_attention_heads": 3,
            "decoder_intermediate_size": 22,
            "use_complex_transposed_convolution": True,
        },
        "resized": {
            "text_config": _TINY_TEXT | {"eos_token_id": 2},
            "vision_config": TINY_IMAGE | {"hidden_act": "gelu"},
            "projection_dim": 20,
            "extract_layers": [1],
            "reduce_dim": 16,
            "decoder_intermediate_size": 24,
            "use_complex_transposed_convolution": True,
        },
    },
    outputs={"text": "conditional_embeddings"},
    images={"resized": (40, 40)},
)
