"""Twins of `export.models.encoder_decoders.encoder_decoder`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.export.twin import ODD_TEXT, TINY_GPT, TINY_TEXT, Twin

_HAS_CROSS = {"is_decoder": True, "add_cross_attention": True}
_BERT = {
    **TINY_TEXT,
    "model_type": "bert",
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
_ROBERTA = _BERT | {
    "model_type": "roberta",
    "type_vocab_size": 1,
    "pad_token_id": 2,  # no token of the sources that the tests draw
}


def _pair(encoder: Mapping[str, Any], decoder: Mapping[str, Any]) -> dict[str, Any]:
    """Both halves."""
    halves = {"encoder": dict(encoder), "decoder": {**decoder, **_HAS_CROSS}}
    return halves | {"decoder_start_token_id": 1, "pad_token_id": 0, "eos_token_id": 1}


TWIN = Twin(
    reference="transformers:EncoderDecoderModel",
    configs={
        "plain": _pair(_BERT, _BERT),
        "odd": _pair(
            _BERT | {"hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-3},
            _BERT | ODD_TEXT | {"intermediate_size": 44},
        ),
        "roberta": _pair(_ROBERTA, _ROBERTA | {"tie_word_embeddings": False}),
        "bert-gpt2": _pair(
            _BERT | {"num_hidden_layers": 1},
            TINY_GPT | {"model_type": "gpt2", "n_embd": 30, "n_head": 3},
        ),
    },
)
