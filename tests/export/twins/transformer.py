"""Twins of `export.models.encoder_decoders.transformer`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

TINY = {
    "vocab_size": 64,
    "max_positions": 32,
    "d_model": 32,
    "nhead": 4,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "dim_feedforward": 48,
    "decoder_start_token_id": 2,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
ODD = {"d_model": 30, "nhead": 3, "final_norm": True}
GELU = {"activation": "gelu", "layer_norm_eps": 1e-3, "num_decoder_layers": 1}
TWIN = tiny_twin(
    "tests.export.models.transformer_paper:Transformer",
    TINY,
    {
        "odd": ODD | {"num_encoder_layers": 1, "num_decoder_layers": 4},
        "gelu": GELU,
    },
)
