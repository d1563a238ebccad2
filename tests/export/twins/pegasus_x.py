"""Twins of `export.models.encoder_decoders.pegasus_x`."""

from __future__ import annotations

from tests.export.twin import Twin
from tests.export.twins.bart import ODD, TINY

_IDS = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1, "decoder_start_token_id": 0}
_IDS |= {"forced_eos_token_id": 1}
TWIN = Twin(
    reference="transformers:PegasusXForConditionalGeneration",
    configs={
        "plain": TINY | _IDS | {"num_global_tokens": 3, "block_size": 4},
        # three layers, of which one is staggered, and sources of several blocks
        "odd": ODD
        | _IDS
        | {"encoder_layers": 3, "num_global_tokens": 3, "block_size": 2, "scale_embedding": False},
        "one block": TINY | _IDS | {"num_global_tokens": 1, "activation_function": "relu"},
        "not staggered": TINY
        | _IDS
        | {"num_global_tokens": 5, "block_size": 2, "stagger_local_blocks": False},
    },
)
