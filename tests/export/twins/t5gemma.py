"""Twins of `export.models.encoder_decoders.t5gemma`."""

from __future__ import annotations

from typing import Any

from tests.export.twin import Twin
from tests.export.twins import gemma, llama

_CAPS = {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0}
_NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}


def _stacks(
    both: dict[str, Any], decoder: dict[str, Any] | None = None, **top: Any
) -> dict[str, Any]:
    """The configuration; the decoder differs from the encoder in the given fields."""
    encoder = gemma.TINY_NEWER | both
    sections = {"encoder": encoder, "decoder": encoder | (decoder or {})}
    return sections | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1} | top


TWIN = Twin(
    reference="transformers:T5GemmaForConditionalGeneration",
    configs={
        "plain": _stacks(_CAPS),
        "odd": _stacks(
            llama.ODD | _CAPS | {"intermediate_size": 44, "num_hidden_layers": 3},
            {
                "hidden_size": 30,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "intermediate_size": 52,
                "num_hidden_layers": 2,
                "query_pre_attn_scalar": 7,
                "layer_types": ["full_attention", "sliding_attention"],
                "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            },
        ),
        "uncapped": _stacks(
            _NO_CAPS | {"attention_bias": True, "hidden_activation": "relu"},
            {"hidden_size": 24, "sliding_window": 2},
            tie_word_embeddings=False,
        ),
    },
)
