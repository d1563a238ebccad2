"""Twins of `export.models.encoder_decoders.marian`."""

from __future__ import annotations

from tests.export.twin import tiny_twin
from tests.export.twins import bart

_TINY = bart.SIZES | {
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 63,
    "eos_token_id": 0,
    "decoder_start_token_id": 63,
    "forced_eos_token_id": 0,
}
_TWO_TABLES = {
    "decoder_vocab_size": 50,
    "share_encoder_decoder_embeddings": False,
    "pad_token_id": 49,
    "decoder_start_token_id": 49,
}
TWIN = tiny_twin(
    "transformers:MarianMTModel",
    _TINY,
    {
        "odd": {
            "d_model": 30,
            "encoder_attention_heads": 5,
            "decoder_attention_heads": 3,
            "encoder_layers": 1,
        },
        "unscaled-relu": {
            "scale_embedding": False,
            "activation_function": "relu",
            "decoder_layers": 3,
        },
        "separate-tables": _TWO_TABLES
        | {"tie_word_embeddings": False, "activation_function": "gelu"},
        "tied-target": _TWO_TABLES
        | {
            "tie_word_embeddings": True,
            "d_model": 36,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "activation_function": "gelu_new",
        },
    },
)
