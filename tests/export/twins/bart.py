"""Twins of `export.models.encoder_decoders.bart`."""

from __future__ import annotations

from tests.export.twin import Twin

SIZES = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 32,
}
TINY = SIZES | {
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": 2,
}
ODD = TINY | {
    "d_model": 30,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_layers": 1,
    "scale_embedding": True,
    "pad_token_id": 0,  # no token of the sources that the tests draw: `generate` would mask it
    "bos_token_id": 1,
}
"""Head widths of 6 and 10, sizes that differ everywhere."""
TWIN = Twin(
    reference="transformers:BartForConditionalGeneration",
    configs={
        "plain": TINY,
        "odd": ODD | {"forced_bos_token_id": 1},
        "separate-tables": TINY
        | {"tie_word_embeddings": False, "activation_function": "relu", "decoder_layers": 1},
    },
)
