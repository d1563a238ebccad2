"""Twins of `export.models.captioners.show_and_tell`."""

from __future__ import annotations

from tests.export.twin import tiny_twin

TINY_IMAGE = {"image_size": 16, "channels": [6, 12], "strides": [2, 2]}
ODD_IMAGE = {"image_size": [18, 26], "channels": [4, 6, 10], "strides": [2, 1, 2]}  # grid 5 x 7
ENDS = {"decoder_start_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
TINY = {
    **TINY_IMAGE,
    **ENDS,
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "max_tokens": 32,
}
ODD = {**ODD_IMAGE, "embedding_size": 9, "hidden_size": 13}
"""What `EXPORTED` changes in it."""


TWIN = tiny_twin(
    "tests.export.models.captioners.captioners_paper:ShowAndTell",
    TINY,
    {"odd": {**ODD, "channels": [4, 6, 5]}},
)
