"""Twins of `export.models.recurrent.rnn_lm`."""

from __future__ import annotations

from tests.export.twin import Twin

_TINY = {
    "vocab_size": 64,
    "embedding_size": 24,
    "hidden_size": 20,
    "cell": "lstm",
    "max_positions": 32,
    "bos_token_id": 2,
    "eos_token_id": 0,
    "pad_token_id": 3,
}
_ODD = _TINY | {"embedding_size": 9, "hidden_size": 13, "num_layers": 2}
_LSTMN = _TINY | {"attention_size": 11}
LSTMN = Twin(
    reference="tests.export.models.recurrent_paper:LstmnForCausalLM",
    configs={
        "plain": _LSTMN,
        "odd": _LSTMN
        | {"embedding_size": 27, "hidden_size": 41, "attention_size": 37, "num_layers": 2},
    },
)
TWIN = Twin(
    reference="tests.export.models.recurrent_paper:RnnForCausalLM",
    configs={
        "plain": _TINY,
        "odd": _ODD | {"cell": "lstm-peephole"},
        "elman": _TINY | {"cell": "rnn"},
        "gru": _ODD | {"cell": "gru-reset-after"},
        "paper-gru": _ODD | {"cell": "gru"},
        "mut1": _ODD | {"cell": "mut1"},
        "mut2": _TINY | {"cell": "mut2"},
        "mut3": _ODD | {"cell": "mut3"},
        "nas": _ODD | {"cell": "nas"},
    },
)
