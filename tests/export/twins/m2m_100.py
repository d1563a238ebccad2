"""Twins of `export.models.encoder_decoders.m2m_100`."""

from __future__ import annotations

from tests.export.twin import Twin
from tests.export.twins.bart import ODD, TINY

TWIN = Twin(
    reference="transformers:M2M100ForConditionalGeneration",
    configs={
        "plain": TINY | {"scale_embedding": False, "pad_token_id": 0, "bos_token_id": 1},
        "odd": ODD,
        "another padding token": TINY | {"pad_token_id": 4, "activation_function": "swish"},
    },
)
