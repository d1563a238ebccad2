"""Twins of `export.models.encoder_decoders.mbart`."""

from __future__ import annotations

from tests.export.twin import Twin
from tests.export.twins.bart import ODD, TINY

TWIN = Twin(
    reference="transformers:MBartForConditionalGeneration",
    configs={
        "plain": TINY | {"scale_embedding": True, "activation_function": "relu"},
        "odd": ODD,
    },
)
