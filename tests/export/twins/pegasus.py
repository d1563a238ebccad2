"""Twins of `export.models.encoder_decoders.pegasus`."""

from __future__ import annotations

from tests.export.twin import Twin
from tests.export.twins.bart import ODD, TINY

_IDS = {
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": 1,
}
TWIN = Twin(
    reference="transformers:PegasusForConditionalGeneration",
    configs={
        "plain": TINY | _IDS | {"activation_function": "relu"},
        "odd": ODD | _IDS | {"activation_function": "relu"},
    },
)
