"""Twins of `export.models.encoder_decoders.translator`."""

from __future__ import annotations

from tests.export.twin import Twin
from tests.export.twins import bart

_BEHIND = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "layer_norm_eps": 1e-5,
    "share_encoder_decoder_embeddings": True,
}
_IN_FRONT = _BEHIND | {"normalize_before": True, "add_final_layer_norm": True}
_APART = {"share_encoder_decoder_embeddings": False}
_MARIAN = bart.MARIAN.configs
TWIN = Twin(
    reference="transformers:PegasusForConditionalGeneration",
    configs={
        "odd": {**bart.PEGASUS.configs["odd"], **_IN_FRONT},
        "plain": {**_MARIAN["odd"], **_BEHIND},
        "two-tables": {**_MARIAN["separate-tables"], **_BEHIND, **_APART},
    },
    references={
        "plain": "transformers:MarianMTModel",
        "two-tables": "transformers:MarianMTModel",
    },
)
