"""Twins of `export.models.recurrent.bahdanau`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

_TINY = {
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "attention_size": 16,
    "readout_size": 12,
    "max_positions": 32,
    "decoder_start_token_id": 2,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
TWIN = tiny_twin(
    "tests.export.models.recurrent_paper:Paper",
    _TINY,
    {
        "odd": {"embedding_size": 9, "hidden_size": 13, "attention_size": 7, "readout_size": 5},
    },
)
