"""Twins of `export.models.encoder_decoders.longt5`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins.t5 import TINY

_SUMS = {"encoder_attention_type": "transient-global", "global_block_size": 2}
TWIN = tiny_twin(
    "transformers:LongT5ForConditionalGeneration",
    TINY | {"local_radius": 2},
    {
        "odd": _SUMS
        | {
            "d_model": 18,
            "d_kv": 7,
            "num_heads": 5,
            "num_layers": 3,
            "num_decoder_layers": 2,
            "local_radius": 1,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "layer_norm_epsilon": 1e-3,
        },
        "sums of four": _SUMS | {"local_radius": 3, "global_block_size": 4},
        "one block": _SUMS | {"local_radius": 15, "num_layers": 1},
        "gated": {"feed_forward_proj": "gated-silu", "local_radius": 1, "num_layers": 3},
    },
    untied={"odd": ("lm_head.weight",)},
)
