"""Twins of `export.models.encoders.perceiver`."""

from __future__ import annotations

from export.models.encoders.perceiver import CONVOLVED, FOURIER, LEARNED
from tests.export.twin import twin_with_heads

_TINY = {
    "num_latents": 5,
    "d_latents": 32,
    "d_model": 16,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 4,
    "num_cross_attention_heads": 2,
    "vocab_size": 131,
    "max_position_embeddings": 16,
}
_CLASSES = {"id2label": {number: f"class {number}" for number in range(3)}}
_IMAGE = _TINY | _CLASSES | {"d_latents": 24, "image_size": 9}
TWIN = twin_with_heads(
    {
        "odd": (
            "PerceiverForMaskedLM",
            _TINY
            | {
                "num_latents": 7,
                "d_latents": 30,
                "d_model": 40,
                "num_blocks": 2,
                "num_self_attention_heads": 3,
                "num_cross_attention_heads": 5,
                "qk_channels": 60,
                "v_channels": 30,
                "self_attention_widening_factor": 2,
                "cross_attention_widening_factor": 3,
                "hidden_act": "gelu_new",
                "vocab_size": 70,
                "image_size": 8,
            },
        ),
        "plain": ("PerceiverForMaskedLM", _TINY),
        "as-wide-as-queries": (
            "PerceiverForSequenceClassification",
            _TINY
            | _CLASSES
            | {
                "cross_attention_shape_for_attention": "q",
                "use_query_residual": False,
                "num_cross_attention_heads": 4,
                "num_blocks": 3,
            },
        ),
        "relevance": ("PerceiverForSequenceClassification", _TINY | {"num_labels": 1}),
        "learned": (LEARNED, _IMAGE),
        "fourier": (FOURIER, _IMAGE | {"num_cross_attention_heads": 3}),
        "convolved": (CONVOLVED, _IMAGE | {"num_blocks": 2}),
    },
    images={"fourier": (11, 14), "convolved": (33, 46)},
)
