"""Twins of `export.models.recurrent.rnn_seq2seq`."""

from __future__ import annotations

from tests.export.twin import Twin

_TINY = {
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "cell": "lstm",
    "context": "initial",
    "max_positions": 32,
    "decoder_start_token_id": 2,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
_ODD = _TINY | {"embedding_size": 9, "hidden_size": 13, "num_layers": 2, "bidirectional": True}
TWIN = Twin(
    reference="tests.export.models.recurrent_paper:RnnSeq2Seq",
    configs={
        "plain": _TINY,
        "odd": _ODD | {"context": "mean"},
        "final": _ODD | {"context": "final", "cell": "gru"},
        "elman": _TINY | {"context": "final", "cell": "rnn"},
    },
)
