"""Twins of `export.models.encoder_decoders.prophetnet`."""

from __future__ import annotations

from typing import Any

import transformers

from tests.export.twin import Twin
from tests.export.twins.bart import call_by_token


class ProphetNetForConditionalGeneration(  # type: ignore[misc]
    transformers.ProphetNetForConditionalGeneration
):
    """The model of `transformers`, called token by token as `generate` does.

    A call of several tokens gives the biases of distances to other heads and positions.
    """

    def forward(self, *given: Any, decoder_input_ids: Any, **named: Any) -> Any:
        return call_by_token(super().forward, *given, decoder_input_ids=decoder_input_ids, **named)


_PROPHETNET: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_encoder_layers": 2,
    "num_encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "num_decoder_layers": 2,
    "num_decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 34,
    "num_buckets": 6,
    "relative_max_distance": 9,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
TWIN = Twin(
    reference="tests.export.twins.prophetnet:ProphetNetForConditionalGeneration",
    configs={
        "plain": _PROPHETNET,
        "odd": _PROPHETNET
        | {
            "hidden_size": 30,
            "num_encoder_layers": 3,
            "num_encoder_attention_heads": 3,
            "encoder_ffn_dim": 44,
            "num_decoder_attention_heads": 5,
            "decoder_ffn_dim": 52,
            "ngram": 3,
            "num_buckets": 7,
        },
        "one stream": _PROPHETNET
        | {"ngram": 1, "disable_ngram_loss": True, "activation_function": "relu", "num_buckets": 2},
        "separate-tables": _PROPHETNET | {"tie_word_embeddings": False, "num_decoder_layers": 1},
    },
)
