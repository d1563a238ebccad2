"""Twins of `export.models.captioners.pix2struct`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

_TINY_VISION = {
    "hidden_size": 24,
    "patch_embed_hidden_size": 12,
    "d_ff": 40,
    "d_kv": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "seq_len": 12,
}
_TINY_TEXT = {
    "vocab_size": 64,
    "hidden_size": 24,
    "d_kv": 6,
    "d_ff": 44,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
}
_TINY = {"vision_config": _TINY_VISION, "text_config": _TINY_TEXT}
TWIN = tiny_twin(
    "transformers:Pix2StructForConditionalGeneration",
    _TINY,
    {
        "odd": {
            "vision_config": _TINY_VISION
            | {"d_kv": 7, "num_attention_heads": 3, "layer_norm_eps": 1e-3, "hidden_size": 30},
            "text_config": _TINY_TEXT
            | {"hidden_size": 30, "num_heads": 6, "d_kv": 5, "layer_norm_epsilon": 1e-3},
        },
        "other activations": {
            "vision_config": _TINY_VISION | {"dense_act_fn": "relu", "hidden_size": 24},
            "text_config": _TINY_TEXT | {"dense_act_fn": "silu", "num_layers": 1},
        },
    },
)
