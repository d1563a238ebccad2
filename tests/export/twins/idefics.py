"""Twins of `export.models.vision_language.idefics`."""

from __future__ import annotations

from export.tokenizer.prompt_images import IMAGE_TOKEN
from tests.export.twin import tiny_twin

_TINY_IMAGE = {
    "embed_dim": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "image_size": 32,
    "patch_size": 8,
    "layer_norm_eps": 1e-3,
}
_TINY_PERCEIVER = {
    "use_resampler": True,
    "resampler_n_latents": 5,
    "resampler_depth": 2,
    "resampler_n_heads": 3,
    "resampler_head_dim": 10,
}
_TINY = {
    "vocab_size": 60,
    "additional_vocab_size": 4,
    IMAGE_TOKEN: 61,
    "hidden_size": 30,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "vision_config": _TINY_IMAGE,
    "perceiver_config": _TINY_PERCEIVER,
}
TWIN = tiny_twin(
    "transformers:IdeficsForVisionText2Text",
    _TINY,
    {
        "plain": {"num_hidden_layers": 1, "hidden_size": 24},
        "odd": {
            "use_resampler": True,
            "alpha_type": "vector",
            "qk_layer_norms": True,
            "num_hidden_layers": 2,
            "perceiver_config": _TINY_PERCEIVER | {"resampler_depth": 1},
        },
        "resampled, tied": {
            "use_resampler": True,
            "perceiver_config": _TINY_PERCEIVER | {"qk_layer_norms_perceiver": True},
            "num_hidden_layers": 2,
            "tie_word_embeddings": True,
            "hidden_act": "gelu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        "no added tokens": {
            "vocab_size": 64,
            "additional_vocab_size": 0,
            "num_hidden_layers": 4,
            "cross_layer_interval": 2,
            "vision_config": _TINY_IMAGE | {"hidden_act": "quick_gelu", "num_attention_heads": 3},
            "hidden_size": 32,
            "num_attention_heads": 2,
        },
    },
)
