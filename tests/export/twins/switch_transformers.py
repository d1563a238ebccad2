"""Twins of `export.models.encoder_decoders.switch_transformers`."""

from __future__ import annotations

from typing import Any

import transformers

from tests.export.twin import tiny_twin
from tests.export.twins.t5 import TINY


class SwitchTransformersForConditionalGeneration(
    transformers.SwitchTransformersForConditionalGeneration
):  # type: ignore[misc]
    """Source and target share a table where the output has one of its own."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.encoder.embed_tokens = self.decoder.embed_tokens = self.shared


_DENSE_TARGET = {"num_decoder_layers": 1, "num_sparse_decoder_layers": 2}
"""A decoder of the reference counts tokens within a call, which a test gives it whole."""
TWIN = tiny_twin(
    "transformers:SwitchTransformersForConditionalGeneration",
    TINY
    | {"num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1}
    | {"num_sparse_decoder_layers": 1, "num_experts": 4},
    {
        "odd": {
            "d_model": 18,
            "d_kv": 7,
            "num_heads": 5,
            "num_layers": 3,
            "num_experts": 2,
            "router_bias": True,
            "tie_word_embeddings": False,
            "layer_norm_epsilon": 1e-3,
        },
        "deep": {"num_layers": 5, "num_sparse_encoder_layers": 2, "num_experts": 3}
        | {"num_decoder_layers": 3, "num_sparse_decoder_layers": 3},
        "full experts": {"expert_capacity": 2, "num_experts": 2} | _DENSE_TARGET,
        "one token each": {"expert_capacity": 1, "num_sparse_encoder_layers": 2} | _DENSE_TARGET,
        "one layer": {"num_sparse_encoder_layers": 0, "num_layers": 1, "dense_act_fn": "gelu"}
        | _DENSE_TARGET,
    },
    references={"odd": f"{__name__}:SwitchTransformersForConditionalGeneration"},
)
